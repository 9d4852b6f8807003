#include "kernels/layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace qevict {
namespace {

template <typename T>
std::vector<T> random_items(std::size_t n, std::mt19937& random) {
  std::vector<T> items(n);
  for (T& item : items) item = static_cast<T>(random());
  return items;
}

const Geometry kShapes[] = {
    {.n_heads = 2, .n_kv_heads = 2, .head_dim = 8, .window = 4, .quant_bits = 2},
    {.n_heads = 3, .n_kv_heads = 3, .head_dim = 20, .window = 8, .quant_bits = 4},
    {.n_heads = 1, .n_kv_heads = 1, .head_dim = 64, .window = 32, .quant_bits = 2},
};

TEST(Layout, FullWindowsComeBackFromAnyLane) {
  std::mt19937 random(1);
  for (const Geometry& g : kShapes) {
    const std::size_t n = g.full_window_bytes() / 4;  // of K, of V
    for (int lanes = 1; lanes <= kLanes; ++lanes) {
      std::vector<std::uint8_t> group(g.full_window_bytes() * lanes);
      std::vector<std::vector<fp16_t>> k;
      std::vector<std::vector<fp16_t>> v;
      for (int lane = 0; lane < lanes; ++lane) {
        k.push_back(random_items<fp16_t>(n, random));
        v.push_back(random_items<fp16_t>(n, random));
        full_group_store(g, group.data(), lanes, lane, k[lane].data(), v[lane].data());
      }
      std::vector<fp16_t> k_back(n);
      std::vector<fp16_t> v_back(n);
      for (int lane = 0; lane < lanes; ++lane) {
        full_group_load(g, group.data(), lanes, lane, k_back.data(), v_back.data());
        EXPECT_EQ(k_back, k[lane]);
        EXPECT_EQ(v_back, v[lane]);
      }
    }
  }
}

TEST(Layout, QuantizedWindowsComeBackFromAnyLane) {
  std::mt19937 random(2);
  for (const Geometry& g : kShapes) {
    const std::size_t n = g.quantized_window_bytes();
    for (int lanes = 1; lanes <= kLanes; ++lanes) {
      std::vector<std::uint8_t> group(n * lanes);
      std::vector<std::vector<std::uint8_t>> blocks;
      for (int lane = 0; lane < lanes; ++lane) {
        blocks.push_back(random_items<std::uint8_t>(n, random));
        quant_group_store(g, group.data(), lanes, lane, blocks[lane].data());
      }
      std::vector<std::uint8_t> back(n);
      for (int lane = 0; lane < lanes; ++lane) {
        quant_group_load(g, group.data(), lanes, lane, back.data());
        EXPECT_EQ(back, blocks[lane]);
      }
    }
  }
}

TEST(Layout, FullItemsStandWhereTheHeaderSays) {
  const Geometry g = kShapes[0];
  const int lanes = 3;
  std::vector<std::uint8_t> group(g.full_window_bytes() * lanes);
  std::vector<fp16_t> k(2 * 4 * 8, 0);
  std::vector<fp16_t> v(2 * 4 * 8, 0);
  k[(1 * 4 + 2) * 8 + 5] = 0x1234;  // head 1, token 2, channel 5
  v[(1 * 4 + 3) * 8 + 6] = 0x4321;  // head 1, token 3, channel 6
  full_group_store(g, group.data(), lanes, 1, k.data(), v.data());
  const auto* items = reinterpret_cast<const fp16_t*>(group.data());
  const std::size_t half = std::size_t{4} * 8 * lanes;  // K, then V, of a head
  EXPECT_EQ(items[2 * half + (2 * 8 + 5) * lanes + 1], 0x1234);
  EXPECT_EQ(items[2 * half + half + (1 * 4 + 3) * 8 + 6], 0x4321);
}

TEST(Layout, BlockPartsFollowEachOther) {
  const Geometry g = kShapes[0];
  std::vector<std::uint8_t> bytes(g.quantized_window_bytes());
  EXPECT_EQ(bytes.size(), 2 * (8 + 8 + 4 * 8 + 4 * 4));
  const QuantBlock block = quant_block(g, bytes.data(), 1);
  const std::uint8_t* head = bytes.data() + bytes.size() / 2;
  EXPECT_EQ(block.k_codes, head);
  EXPECT_EQ(reinterpret_cast<std::uint8_t*>(block.k_scale), head + 8);
  EXPECT_EQ(reinterpret_cast<std::uint8_t*>(block.k_zero), head + 8 + 16);
  EXPECT_EQ(block.v_codes, head + 8 + 32);
  EXPECT_EQ(reinterpret_cast<std::uint8_t*>(block.v_scale), head + 8 + 32 + 8);
  EXPECT_EQ(reinterpret_cast<std::uint8_t*>(block.v_zero), head + 8 + 32 + 8 + 8);
}

}  // namespace
}  // namespace qevict
