#include "model/weight_rewrite.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace qevict {
namespace {

TEST(WeightRewrite, KeepsTheBitsOfEveryValue) {
  constexpr int kBlocks = 500;
  constexpr int kValues = kBlocks * 32;
  std::mt19937 random(7);
  std::vector<std::byte> q5(kBlocks * ggml_type_size(GGML_TYPE_Q5_0));
  for (int b = 0; b < kBlocks; ++b) {
    std::byte* block = q5.data() + b * ggml_type_size(GGML_TYPE_Q5_0);
    for (std::size_t i = 0; i < ggml_type_size(GGML_TYPE_Q5_0); ++i) {
      block[i] = static_cast<std::byte>(random() & 255U);
    }
    // Scales of either sign, subnormal ones among them, but neither infinite nor NaN.
    const auto scale = static_cast<std::uint16_t>((random() & 0x83ffU) | ((random() % 31U) << 10U));
    std::memcpy(block, &scale, sizeof(scale));
  }
  std::vector<std::byte> q8(kBlocks * ggml_type_size(GGML_TYPE_Q8_0));
  rewrite_q5_0_as_q8_0(q5.data(), kBlocks, q8.data());
  std::vector<float> before(kValues);
  std::vector<float> after(kValues);
  ggml_get_type_traits(GGML_TYPE_Q5_0)->to_float(q5.data(), before.data(), kValues);
  ggml_get_type_traits(GGML_TYPE_Q8_0)->to_float(q8.data(), after.data(), kValues);
  EXPECT_EQ(0, std::memcmp(before.data(), after.data(), sizeof(float) * kValues));
  EXPECT_NE(before[0], before[1]);
}

TEST(WeightRewrite, IsForQ5Only) {
  EXPECT_EQ(lossless_type(GGML_TYPE_Q5_0), GGML_TYPE_Q8_0);
  EXPECT_EQ(lossless_type(GGML_TYPE_Q5_1), GGML_TYPE_Q5_1);
  EXPECT_EQ(lossless_type(GGML_TYPE_Q4_K), GGML_TYPE_Q4_K);
}

}  // namespace
}  // namespace qevict
