// Single codes and grids of stored windows, scalar: what the codec, the reference kernels and the
// tests read them with (layout.h has the formats).
#pragma once

#include <cstring>

#include "kernels/layout.h"

namespace qevict {

// Item `item` of a row of n_items codes whose bytes are `stride` apart.
inline int unpack_code(const std::uint8_t* row, std::ptrdiff_t stride, int n_items, int bits,
                       int item) noexcept {
  const auto plane = [&](std::ptrdiff_t first, int width) {
    const int per_byte = 8 / width;
    const int byte = row[(first + item / per_byte) * stride];
    return byte >> (item % per_byte * width) & ((1 << width) - 1);
  };
  return bits == 3 ? plane(0, 2) + 4 * plane(n_items / 4, 1) : plane(0, bits);
}

// Code of token j, channel d of the window in `lane`.
inline int key_code(const Geometry& g, const QuantView& v, int lane, int j, int d) noexcept {
  const std::ptrdiff_t row_bytes = g.window * g.quant_bits / 8;
  return unpack_code(v.k_codes + d * row_bytes * v.lanes + lane, v.lanes, g.window, g.quant_bits,
                     j);
}
inline int value_code(const Geometry& g, const QuantView& v, int lane, int j, int d) noexcept {
  const std::ptrdiff_t row_bytes = g.head_dim * g.quant_bits / 8;
  const std::ptrdiff_t row = std::ptrdiff_t{lane} * g.window + j;
  return unpack_code(v.v_codes + row * row_bytes, 1, g.head_dim, g.quant_bits, d);
}

// x = code * scale + zero.
struct QuantGrid {
  float scale, zero;
};

// The grid between ends a and b of a super-range.
inline QuantGrid grid_between(float low, float width, int top, int bits, int a, int b) noexcept {
  const float step = width / static_cast<float>(top);
  const auto levels = static_cast<float>((1 << bits) - 1);
  return {step * static_cast<float>(b - a) / levels, low + step * static_cast<float>(a)};
}

// Grid `at` of n_grids (times lanes), inside [low, low + width] unless F16.
inline QuantGrid read_grid(GridFormat format, int bits, const std::uint8_t* grids,
                           std::ptrdiff_t n_grids, std::ptrdiff_t at, float low,
                           float width) noexcept {
  if (format == GridFormat::F16) {
    fp16_t scale = 0;
    fp16_t zero = 0;
    std::memcpy(&scale, grids + 2 * at, sizeof scale);
    std::memcpy(&zero, grids + 2 * (n_grids + at), sizeof zero);
    return {fp16_to_fp32(scale), fp16_to_fp32(zero)};
  }
  const bool u4 = format == GridFormat::U4;
  const int a = u4 ? grids[at] & 15 : grids[at];
  const int b = u4 ? grids[at] >> 4 : grids[n_grids + at];
  return grid_between(low, width, grid_top(format), bits, a, b);
}

// Grid of channel d, of token j, of the window in `lane`.
inline QuantGrid key_grid_of(const Geometry& g, const QuantView& v, const QuantRange& range,
                             int kv_head, int lane, int d) noexcept {
  const fp16_t* r =
      range.keys == nullptr ? nullptr : range.keys + std::ptrdiff_t{2} * kv_head * g.head_dim;
  return read_grid(g.key_grid, g.quant_bits, v.k_grid, std::ptrdiff_t{g.head_dim} * v.lanes,
                   std::ptrdiff_t{d} * v.lanes + lane, r == nullptr ? 0.0F : fp16_to_fp32(r[d]),
                   r == nullptr ? 0.0F : fp16_to_fp32(r[g.head_dim + d]));
}
inline QuantGrid value_grid_of(const Geometry& g, const QuantView& v, const QuantRange& range,
                               int kv_head, int lane, int j) noexcept {
  const fp16_t* r = range.values == nullptr ? nullptr : range.values + 2 * kv_head;
  return read_grid(g.value_grid, g.quant_bits, v.v_grid, std::ptrdiff_t{g.window} * v.lanes,
                   std::ptrdiff_t{j} * v.lanes + lane, r == nullptr ? 0.0F : fp16_to_fp32(r[0]),
                   r == nullptr ? 0.0F : fp16_to_fp32(r[1]));
}

// Dequantised, the key before RoPE.
inline float quant_key(const Geometry& g, const QuantView& v, const QuantRange& range, int kv_head,
                       int lane, int j, int d) noexcept {
  const QuantGrid grid = key_grid_of(g, v, range, kv_head, lane, d);
  return static_cast<float>(key_code(g, v, lane, j, d)) * grid.scale + grid.zero;
}
inline float quant_value(const Geometry& g, const QuantView& v, const QuantRange& range,
                         int kv_head, int lane, int j, int d) noexcept {
  const QuantGrid grid = value_grid_of(g, v, range, kv_head, lane, j);
  return static_cast<float>(value_code(g, v, lane, j, d)) * grid.scale + grid.zero;
}

}  // namespace qevict
