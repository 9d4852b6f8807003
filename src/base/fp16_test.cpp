#include "base/fp16.h"

#include <gtest/gtest.h>

#include <cmath>

namespace qevict {
namespace {

float hardware(fp16_t h) { return static_cast<float>(std::bit_cast<_Float16>(h)); }
fp16_t hardware(float x) { return std::bit_cast<fp16_t>(static_cast<_Float16>(x)); }

TEST(Fp16, EveryHalfConvertsAsTheCompilersOwn) {
  for (std::uint32_t i = 0; i <= 0xffffU; ++i) {
    const auto h = static_cast<fp16_t>(i);
    const float want = hardware(h);
    const float got = fp16_to_fp32(h);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << i;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(want), std::bit_cast<std::uint32_t>(got)) << i;
    }
  }
}

TEST(Fp16, FloatsRoundAsTheCompilersOwn) {
  // All exponents and signs, with mantissas around every rounding boundary and a spread of others.
  std::uint32_t mantissas[] = {0,        1,        0xfff,    0x1000,  0x1001,   0x1fff,
                               0x2000,   0x2fff,   0x3000,   0x3001,  0x7fefff, 0x7ff000,
                               0x7ff001, 0x7fffff, 0x555555, 0x2aaaaa};
  for (std::uint32_t high = 0; high < 512; ++high) {
    for (const std::uint32_t base : mantissas) {
      for (std::uint32_t step = 0; step < 0x7fffff; step += 0x61a80) {
        const float x = std::bit_cast<float>((high << 23) | ((base + step) & 0x7fffffU));
        const fp16_t want = hardware(x);
        const fp16_t got = fp32_to_fp16(x);
        if (std::isnan(x)) {
          ASSERT_TRUE(std::isnan(fp16_to_fp32(got)));
        } else {
          ASSERT_EQ(want, got) << std::hexfloat << x;
        }
      }
    }
  }
}

}  // namespace
}  // namespace qevict
