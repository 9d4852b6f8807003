#include "kernels/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/layout.h"

namespace qevict {
namespace {

struct Group {
  std::vector<std::uint8_t> codes;
  float scale = 0.0F;
  float zero = 0.0F;
  std::vector<float> values() const {
    std::vector<float> x;
    for (const std::uint8_t code : codes) x.push_back(static_cast<float>(code) * scale + zero);
    return x;
  }
};

Group quantize(const std::vector<float>& x, int bits) {
  Group out;
  out.codes.resize(x.size());
  fp16_t scale = 0;
  fp16_t zero = 0;
  quantize_group(x.data(), static_cast<int>(x.size()), 1, bits, out.codes.data(), &scale, &zero);
  out.scale = fp16_to_fp32(scale);
  out.zero = fp16_to_fp32(zero);
  return out;
}

using Codes = std::vector<std::uint8_t>;

TEST(Codec, SpreadsTheLevelsFromMinimumToMaximum) {
  const Group g = quantize({-1.0F, 2.0F, 0.0F, 1.0F}, 2);
  EXPECT_EQ(g.scale, 1.0F);
  EXPECT_EQ(g.zero, -1.0F);
  EXPECT_EQ(g.codes, (Codes{0, 3, 1, 2}));
  EXPECT_EQ(quantize({0.0F, 15.0F, 7.0F, 8.0F}, 4).codes, (Codes{0, 15, 7, 8}));
}

TEST(Codec, RoundsHalfToEven) {
  const Group g = quantize({0.0F, 0.5F, 1.5F, 2.5F, 3.0F}, 2);
  EXPECT_EQ(g.scale, 1.0F);
  EXPECT_EQ(g.codes, (Codes{0, 0, 2, 2, 3}));
}

TEST(Codec, ConstantGroupHasScaleOneAndCodesFromTheFormula) {
  EXPECT_EQ(quantize({0.25F, 0.25F}, 2).codes, (Codes{0, 0}));
  EXPECT_EQ(quantize({0.25F, 0.25F}, 2).values(), (std::vector<float>{0.25F, 0.25F}));
  // 4097 is not an fp16: its zero is 4096 and code 1 restores it; 4099's zero 4100 lies above it.
  const Group above = quantize({4097.0F, 4097.0F}, 2);
  EXPECT_EQ(above.scale, 1.0F);
  EXPECT_EQ(above.values(), (std::vector<float>{4097.0F, 4097.0F}));
  const Group below = quantize({4099.0F, 4099.0F}, 2);
  EXPECT_EQ(below.zero, 4100.0F);
  EXPECT_EQ(below.codes, (Codes{0, 0}));
}

TEST(Codec, ScaleThatVanishesInFp16BecomesOne) {
  const Group g = quantize({0.0F, 3e-8F}, 2);
  EXPECT_EQ(g.scale, 1.0F);
  EXPECT_EQ(g.codes, (Codes{0, 0}));
  const Group denormal = quantize({0.0F, 3 * 0x1p-24F}, 2);
  EXPECT_EQ(denormal.scale, 0x1p-24F);
  EXPECT_EQ(denormal.codes, (Codes{0, 3}));
}

TEST(Codec, GridSaturatesAtTheLargestFp16) {
  const Group g = quantize({-90000.0F, 300000.0F}, 2);
  EXPECT_EQ(g.zero, -65504.0F);
  EXPECT_EQ(g.scale, 65504.0F);
  EXPECT_EQ(g.codes, (Codes{0, 3}));
}

TEST(Codec, CodesUseTheRoundedGrid) {
  // scale 0.1 / 3 and zero 0.1 are rounded to fp16 before the division.
  const Group g = quantize({0.1F, 0.2F, 0.15F}, 2);
  EXPECT_EQ(g.zero, fp16_to_fp32(fp32_to_fp16(0.1F)));
  EXPECT_EQ(g.scale, fp16_to_fp32(fp32_to_fp16((0.2F - 0.1F) / 3.0F)));
  EXPECT_EQ(g.codes[2], static_cast<int>(std::nearbyint((0.15F - g.zero) / g.scale)));
}

// K [8][4]: token j of channel c has code (j + c) % 4; V [8][4]: channel c of token j the same.
TEST(Codec, PacksTokensOfAChannelAndChannelsOfAToken) {
  Geometry g{.n_heads = 1, .n_kv_heads = 1, .head_dim = 4, .window = 8, .quant_bits = 2};
  std::vector<float> x;
  for (int j = 0; j < 8; ++j) {
    for (int c = 0; c < 4; ++c) x.push_back(static_cast<float>((j + c) % 4));
  }
  std::vector<std::uint8_t> bytes(g.quantized_window_bytes());
  std::vector<float> scratch(quantize_scratch_floats(g));
  quantize_window_pre_rope(g, x.data(), x.data(), bytes.data(), scratch.data());
  const QuantBlock block = quant_block(g, bytes.data(), 0);
  // Codes 0 1 2 3, lowest bits first: 0b11'10'01'00.
  const std::uint8_t first = 0xe4;
  EXPECT_EQ(block.k_codes[0], first);  // channel 0, tokens 0-3
  EXPECT_EQ(block.k_codes[1], first);  // channel 0, tokens 4-7
  EXPECT_EQ(block.k_codes[2], 0x39);   // channel 1: 1 2 3 0
  EXPECT_EQ(block.v_codes[0], first);  // token 0, channels 0-3
  EXPECT_EQ(block.v_codes[1], 0x39);   // token 1
  EXPECT_EQ(block.v_codes[7], 0x93);   // token 7: 3 0 1 2
  EXPECT_EQ(fp16_to_fp32(block.k_scale[3]), 1.0F);
  EXPECT_EQ(fp16_to_fp32(block.v_zero[3]), 0.0F);

  g.quant_bits = 4;
  bytes.assign(g.quantized_window_bytes(), 0);
  for (float& v : x) v *= 5.0F;
  quantize_window_pre_rope(g, x.data(), x.data(), bytes.data(), scratch.data());
  EXPECT_EQ(quant_block(g, bytes.data(), 0).k_codes[0], 0x50);  // tokens 0 and 1: 0, 5
  EXPECT_EQ(quant_block(g, bytes.data(), 0).v_codes[1], 0xfa);  // token 0, channels 2 and 3: 10, 15
}

TEST(Codec, DequantizedWindowLiesWithinHalfAStep) {
  for (const int bits : {2, 4}) {
    const Geometry g{
        .n_heads = 3, .n_kv_heads = 3, .head_dim = 20, .window = 12, .quant_bits = bits};
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> k(3 * 12 * 20);
    std::vector<float> v(k.size());
    for (float& x : k) x = normal(random);
    for (float& x : v) x = normal(random);
    std::vector<std::uint8_t> bytes(g.quantized_window_bytes());
    std::vector<float> scratch(quantize_scratch_floats(g));
    quantize_window_pre_rope(g, k.data(), v.data(), bytes.data(), scratch.data());
    std::vector<float> k_back(k.size());
    std::vector<float> v_back(k.size());
    dequantize_window(g, bytes.data(), k_back.data(), v_back.data());
    for (int h = 0; h < 3; ++h) {
      const QuantBlock block = quant_block(g, bytes.data(), h);
      for (int j = 0; j < 12; ++j) {
        for (int c = 0; c < 20; ++c) {
          const std::size_t i = (h * 12 + j) * 20 + c;
          EXPECT_NEAR(k_back[i], k[i], fp16_to_fp32(block.k_scale[c]) * 0.502F + 2e-3F);
          EXPECT_NEAR(v_back[i], v[i], fp16_to_fp32(block.v_scale[j]) * 0.502F + 2e-3F);
        }
      }
    }
  }
}

// The keys are un-rotated at their own positions: rotated copies of one vector give equal codes.
TEST(Codec, UnrotatesKeysAtTheirPositions) {
  for (const RopePairing pairing : {RopePairing::Neox, RopePairing::Interleaved}) {
    const Geometry g{.n_heads = 1,
                     .n_kv_heads = 1,
                     .head_dim = 32,
                     .window = 8,
                     .quant_bits = 2,
                     .pairing = pairing};
    const RopeSpec rope = RopeSpec::plain(pairing, 32, 1e6);
    const long long position = 100005;
    std::vector<fp16_t> k(8 * 32);
    std::vector<fp16_t> v(8 * 32, fp32_to_fp16(0.5F));
    std::vector<float> cos(16);
    std::vector<float> sin(16);
    std::vector<float> row(32);
    for (int j = 0; j < 8; ++j) {
      rope_angles(rope, position + j, cos.data(), sin.data());
      for (int c = 0; c < 32; ++c)
        row[c] = static_cast<float>(j % 4) + 0.25F * static_cast<float>(c);
      rope_rotate(rope, cos.data(), sin.data(), 1.0F, row.data());
      for (int c = 0; c < 32; ++c) k[j * 32 + c] = fp32_to_fp16(row[c]);
    }
    std::vector<std::uint8_t> bytes(g.quantized_window_bytes());
    std::vector<float> scratch(quantize_scratch_floats(g));
    quantize_window(g, rope, position, k.data(), v.data(), bytes.data(), scratch.data());
    const QuantBlock block = quant_block(g, bytes.data(), 0);
    for (int c = 0; c < 32; ++c) {
      EXPECT_EQ(block.k_codes[2 * c], 0xe4) << c;
      EXPECT_EQ(block.k_codes[2 * c + 1], 0xe4) << c;
    }
    // Promotion gives the same keys back up to the grid's and fp16's rounding.
    std::vector<fp16_t> k_back(k.size());
    std::vector<fp16_t> v_back(k.size());
    restore_window(g, rope, position, bytes.data(), k_back.data(), v_back.data(), scratch.data());
    for (std::size_t i = 0; i < k.size(); ++i) {
      EXPECT_NEAR(fp16_to_fp32(k_back[i]), fp16_to_fp32(k[i]), 0.02F);
      EXPECT_EQ(v_back[i], v[i]);
    }
  }
}

}  // namespace
}  // namespace qevict
