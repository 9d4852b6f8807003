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
    {.n_heads = 2,
     .n_kv_heads = 2,
     .head_dim = 24,
     .window = 8,
     .quant_bits = 3,
     .key_grid = GridFormat::U8,
     .value_grid = GridFormat::U8},
    {.n_heads = 2,
     .n_kv_heads = 2,
     .head_dim = 16,
     .window = 8,
     .quant_bits = 8,
     .key_grid = GridFormat::U4,
     .value_grid = GridFormat::U8},
};

// Bytes a token with 2 KV heads of 64, as the ladder of formats counts them.
TEST(Layout, WindowBytesFollowTheFormula) {
  struct Case {
    int window;
    GridFormat key, value;
    std::size_t bytes_a_token;  // of 2-bit codes
  };
  constexpr GridFormat kF16 = GridFormat::F16;
  constexpr GridFormat kU8 = GridFormat::U8;
  constexpr GridFormat kU4 = GridFormat::U4;
  for (const Case& c : {Case{8, kF16, kF16, 136},
                        {8, kU8, kU8, 100},
                        {8, kU4, kU8, 84},
                        {16, kF16, kF16, 104},
                        {16, kU8, kU8, 84},
                        {16, kU4, kU8, 76},
                        {32, kF16, kF16, 88},
                        {32, kU8, kU8, 76},
                        {32, kU4, kU8, 72}}) {
    Geometry g{.n_heads = 14, .n_kv_heads = 2, .head_dim = 64, .window = c.window};
    g.key_grid = c.key;
    g.value_grid = c.value;
    for (const int bits : {2, 3, 4, 8}) {
      g.quant_bits = bits;
      const std::size_t codes = std::size_t{32} * (bits - 2);
      EXPECT_EQ(g.quantized_window_bytes(), (c.bytes_a_token + codes) * c.window);
      EXPECT_TRUE(g.codes_fit());
    }
    EXPECT_EQ(g.range_bytes(), c.key == kF16 ? 0U : 4U * 2 * 64 + 4U * 2);
  }
  EXPECT_FALSE(
      (Geometry{.n_heads = 1, .n_kv_heads = 1, .head_dim = 64, .window = 4, .quant_bits = 3})
          .codes_fit());
  EXPECT_FALSE(
      (Geometry{.n_heads = 1, .n_kv_heads = 1, .head_dim = 64, .window = 5, .quant_bits = 8})
          .codes_fit());
}

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

TEST(Layout, GridsStandWhereTheHeaderSays) {
  Geometry g = kShapes[4];
  std::vector<std::uint8_t> bytes(g.quantized_window_bytes() * 3);
  const std::size_t codes = std::size_t{8} * 16;
  const std::size_t head = 2 * codes + 16 + 2 * 8;
  ASSERT_EQ(g.quantized_window_bytes(), 2 * head);
  const QuantView view = quant_view(g, bytes.data(), 3, 1);
  EXPECT_EQ(view.k_codes, bytes.data() + 3 * head);
  EXPECT_EQ(view.k_grid, view.k_codes + 3 * codes);
  EXPECT_EQ(view.v_codes, view.k_grid + std::size_t{3} * 16);
  EXPECT_EQ(view.v_grid, view.v_codes + 3 * codes);
  EXPECT_EQ(view.end, bytes.data() + bytes.size());
  // Lane 2 of head 1: the ends of channel 5, and end b of token 6's values.
  std::vector<std::uint8_t> block(g.quantized_window_bytes());
  const QuantBlock b = quant_block(g, block.data(), 1);
  b.k_grid[5] = 0x93;
  b.v_grid[8 + 6] = 77;
  quant_group_store(g, bytes.data(), 3, 2, block.data());
  EXPECT_EQ(view.k_grid[5 * 3 + 2], 0x93);
  EXPECT_EQ(view.v_grid[(8 + 6) * 3 + 2], 77);
}

}  // namespace
}  // namespace qevict
