// Codes of 2, 3, 4 and 8 bits with every grid format: packing, error bounds, super-ranges and
// re-quantising.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/codec.h"
#include "kernels/quant_view.h"

namespace qevict {
namespace {

struct Grids {
  GridFormat key, value;
};
constexpr Grids kGrids[] = {{GridFormat::F16, GridFormat::F16},
                            {GridFormat::U8, GridFormat::U8},
                            {GridFormat::U4, GridFormat::U8}};

constexpr int kHeads = 2;
constexpr int kDim = 24;
constexpr int kWindow = 16;

Geometry geometry(int bits, const Grids& grids) {
  return {.n_heads = kHeads,
          .n_kv_heads = kHeads,
          .head_dim = kDim,
          .window = kWindow,
          .quant_bits = bits,
          .key_grid = grids.key,
          .value_grid = grids.value};
}

// Several windows of one layer, keys with a bias on some channels, and the layer's super-ranges.
struct Layer {
  explicit Layer(int n_windows) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    const Geometry g = geometry(2, kGrids[1]);
    std::vector<float> extremes(range_extreme_floats(g));
    range_begin(g, extremes.data());
    for (int w = 0; w < n_windows; ++w) {
      std::vector<float> k(std::size_t(kHeads) * kWindow * kDim);
      std::vector<float> v(k.size());
      for (std::size_t i = 0; i < k.size(); ++i) {
        k[i] = normal(random) + (i % kDim % 7 == 0 ? 30.0F : 0.0F);
        v[i] = normal(random) * 0.5F;
      }
      for (int h = 0; h < kHeads; ++h) {
        const std::size_t at = std::size_t(h) * kWindow * kDim;
        range_add(g, h, kWindow, &k[at], &v[at], extremes.data());
      }
      keys.push_back(k);
      values.push_back(v);
    }
    range_keys.resize(std::size_t(2) * kHeads * kDim);
    range_values.resize(std::size_t(2) * kHeads);
    range_finish(g, extremes.data(), range_keys.data(), range_values.data());
  }
  QuantRange range() const { return {range_keys.data(), range_values.data()}; }
  std::vector<std::uint8_t> block(const Geometry& g, int w) const {
    std::vector<std::uint8_t> bytes(g.quantized_window_bytes());
    std::vector<float> scratch(quantize_scratch_floats(g));
    quantize_window_pre_rope(g, keys[w].data(), values[w].data(), bytes.data(), scratch.data(),
                             range());
    return bytes;
  }
  std::vector<std::vector<float>> keys, values;
  std::vector<fp16_t> range_keys, range_values;
};

TEST(CodecFormats, RangesHoldEveryTokenAndAreAtLeastAThousandthWide) {
  const Layer layer(4);
  for (int h = 0; h < kHeads; ++h) {
    for (int c = 0; c < kDim; ++c) {
      const float low = fp16_to_fp32(layer.range_keys[(2 * h) * kDim + c]);
      const float width = fp16_to_fp32(layer.range_keys[(2 * h + 1) * kDim + c]);
      float least = 1e9F;
      float most = -1e9F;
      for (const auto& k : layer.keys) {
        for (int j = 0; j < kWindow; ++j) {
          least = std::min(least, k[(h * kWindow + j) * kDim + c]);
          most = std::max(most, k[(h * kWindow + j) * kDim + c]);
        }
      }
      EXPECT_EQ(low, fp16_to_fp32(fp32_to_fp16(least)));
      EXPECT_NEAR(low + width, most, 5e-3F);
    }
  }
  const Geometry g = geometry(2, kGrids[1]);
  std::vector<float> extremes(range_extreme_floats(g));
  range_begin(g, extremes.data());
  const std::vector<float> same(kDim, 0.25F);
  for (int h = 0; h < kHeads; ++h) range_add(g, h, 1, same.data(), same.data(), extremes.data());
  std::vector<fp16_t> keys(std::size_t(2) * kHeads * kDim);
  std::vector<fp16_t> values(std::size_t(2) * kHeads);
  range_finish(g, extremes.data(), keys.data(), values.data());
  EXPECT_EQ(keys[0], fp32_to_fp16(0.25F));
  EXPECT_EQ(keys[kDim], fp32_to_fp16(0.001F));
  EXPECT_EQ(values[1], fp32_to_fp16(0.001F));
}

// Every grid and code against the definition, and the dequantised window against them.
TEST(CodecFormats, GridsAndCodesFollowTheDefinition) {
  const Layer layer(3);
  for (const int bits : {2, 3, 4, 8}) {
    for (const Grids& grids : kGrids) {
      const Geometry g = geometry(bits, grids);
      const std::vector<std::uint8_t> block = layer.block(g, 1);
      std::vector<float> k(layer.keys[1].size());
      std::vector<float> v(k.size());
      dequantize_window(g, block.data(), k.data(), v.data(), layer.range());
      const auto check = [&](GridFormat format, const QuantGrid& grid, float low, float width,
                             const std::vector<float>& group, const std::vector<int>& codes,
                             const std::vector<float>& back) {
        const auto [least, most] = std::minmax_element(group.begin(), group.end());
        const int levels = (1 << bits) - 1;
        if (format != GridFormat::F16) {
          const int top = grid_top(format);
          const float step = width / float(top);
          const float a = std::clamp(std::nearbyint((*least - low) / step), 0.0F, float(top - 1));
          const float b = std::clamp(std::nearbyint((*most - low) / step), a + 1.0F, float(top));
          EXPECT_EQ(grid.zero, low + step * a);
          EXPECT_EQ(grid.scale, step * (b - a) / float(levels));
        }
        for (std::size_t i = 0; i < group.size(); ++i) {
          const float code = std::nearbyint((group[i] - grid.zero) / grid.scale);
          EXPECT_EQ(codes[i], int(std::clamp(code, 0.0F, float(levels))));
          EXPECT_EQ(back[i], float(codes[i]) * grid.scale + grid.zero);
        }
      };
      for (int h = 0; h < kHeads; ++h) {
        const QuantView view = quant_view(g, block.data(), 1, h);
        const auto at = [&](int j, int c) { return (h * kWindow + j) * kDim + c; };
        for (int c = 0; c < kDim; ++c) {
          std::vector<float> group, back;
          std::vector<int> codes;
          for (int j = 0; j < kWindow; ++j) {
            group.push_back(layer.keys[1][at(j, c)]);
            back.push_back(k[at(j, c)]);
            codes.push_back(key_code(g, view, 0, j, c));
          }
          check(g.key_grid, key_grid_of(g, view, layer.range(), h, 0, c),
                fp16_to_fp32(layer.range_keys[2 * h * kDim + c]),
                fp16_to_fp32(layer.range_keys[(2 * h + 1) * kDim + c]), group, codes, back);
        }
        for (int j = 0; j < kWindow; ++j) {
          std::vector<float> group, back;
          std::vector<int> codes;
          for (int c = 0; c < kDim; ++c) {
            group.push_back(layer.values[1][at(j, c)]);
            back.push_back(v[at(j, c)]);
            codes.push_back(value_code(g, view, 0, j, c));
          }
          check(g.value_grid, value_grid_of(g, view, layer.range(), h, 0, j),
                fp16_to_fp32(layer.range_values[2 * h]),
                fp16_to_fp32(layer.range_values[2 * h + 1]), group, codes, back);
        }
      }
    }
  }
}

TEST(CodecFormats, ThreeBitsAreAPlaneOfTwoAndAPlaneOfOne) {
  Geometry g = geometry(3, kGrids[0]);
  g.n_heads = g.n_kv_heads = 1;
  // Token j of channel c has code (j + c) % 8.
  std::vector<float> x;
  for (int j = 0; j < kWindow; ++j) {
    for (int c = 0; c < kDim; ++c) x.push_back(static_cast<float>((j + c) % 8));
  }
  std::vector<std::uint8_t> bytes(g.quantized_window_bytes());
  std::vector<float> scratch(quantize_scratch_floats(g));
  quantize_window_pre_rope(g, x.data(), x.data(), bytes.data(), scratch.data());
  const QuantBlock block = quant_block(g, bytes.data(), 0);
  // Codes 0 .. 7: low bits 0 1 2 3 0 1 2 3, high bits of the last four.
  const std::vector<std::uint8_t> channel(block.k_codes, block.k_codes + 6);
  EXPECT_EQ(channel, (std::vector<std::uint8_t>{0xe4, 0xe4, 0xe4, 0xe4, 0xf0, 0xf0}));
  const std::vector<std::uint8_t> token(block.v_codes, block.v_codes + 9);
  EXPECT_EQ(token,
            (std::vector<std::uint8_t>{0xe4, 0xe4, 0xe4, 0xe4, 0xe4, 0xe4, 0xf0, 0xf0, 0xf0}));
}

// A later token outside the range is clamped to it, keys and values alike.
TEST(CodecFormats, ClampsToTheRange) {
  Layer layer(2);
  const Geometry g = geometry(4, kGrids[1]);
  for (float& x : layer.keys[0]) x += 100.0F;
  for (float& x : layer.values[0]) x = -100.0F;
  const std::vector<std::uint8_t> block = layer.block(g, 0);
  std::vector<float> k(layer.keys[0].size());
  std::vector<float> v(k.size());
  dequantize_window(g, block.data(), k.data(), v.data(), layer.range());
  for (int h = 0; h < kHeads; ++h) {
    const float value_low = fp16_to_fp32(layer.range_values[2 * h]);
    for (int i = 0; i < kWindow * kDim; ++i) {
      const float low = fp16_to_fp32(layer.range_keys[2 * h * kDim + i % kDim]);
      const float width = fp16_to_fp32(layer.range_keys[(2 * h + 1) * kDim + i % kDim]);
      EXPECT_NEAR(k[h * kWindow * kDim + i], low + width, width * 1e-5F + 1e-5F);
      EXPECT_EQ(v[h * kWindow * kDim + i], value_low);
    }
  }
}

// Bits fall, the error stays within half a step of the new grid round the values that were stored.
TEST(CodecFormats, RequantisesFromTheStoredValues) {
  const Layer layer(3);
  for (const Grids& grids : kGrids) {
    const Geometry from = geometry(8, grids);
    const std::vector<std::uint8_t> block = layer.block(from, 2);
    std::vector<float> k(layer.keys[2].size());
    std::vector<float> v(k.size());
    dequantize_window(from, block.data(), k.data(), v.data(), layer.range());
    std::vector<float> scratch(quantize_scratch_floats(from));
    for (const int bits : {4, 3, 2}) {
      const Geometry to = geometry(bits, grids);
      std::vector<std::uint8_t> lower(to.quantized_window_bytes());
      requantize_window(from, block.data(), to, lower.data(), scratch.data(), layer.range());
      std::vector<std::uint8_t> want(lower.size());
      quantize_window_pre_rope(to, k.data(), v.data(), want.data(), scratch.data(), layer.range());
      EXPECT_EQ(lower, want);
      std::vector<float> k_low(k.size());
      std::vector<float> v_low(k.size());
      dequantize_window(to, lower.data(), k_low.data(), v_low.data(), layer.range());
      for (int h = 0; h < kHeads; ++h) {
        const QuantView view = quant_view(to, lower.data(), 1, h);
        for (int i = 0; i < kWindow * kDim; ++i) {
          const int at = h * kWindow * kDim + i;
          const QuantGrid key = key_grid_of(to, view, layer.range(), h, 0, i % kDim);
          // The ends of the grid may lie half a step of the super-range inside the values.
          const float width = fp16_to_fp32(layer.range_keys[(2 * h + 1) * kDim + i % kDim]);
          const float slack =
              grids.key == GridFormat::F16 ? 0.05F : 0.51F * width / float(grid_top(grids.key));
          EXPECT_NEAR(k_low[at], k[at], std::max(0.502F * key.scale, slack));
        }
      }
    }
  }
}

}  // namespace
}  // namespace qevict
