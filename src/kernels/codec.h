// The quantiser, written once (method.md section 6; vectors: quantizer.json). Scalar: the
// specification.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/fp16.h"
#include "kernels/geometry.h"
#include "kernels/layout.h"
#include "kernels/rope.h"

namespace qevict {

// Grid of one group of n values spaced `stride` apart. fp16 scale and zero are rounded first,
// saturate at +-65504; a scale that is 0 in fp16 (or max == min) becomes 1. codes [n], one per
// byte. Input must be finite.
void quantize_group(const float* x, int n, std::ptrdiff_t stride, int bits, std::uint8_t* codes,
                    fp16_t* scale, fp16_t* zero) noexcept;

// First demotion of a window: un-rotates the fp16 post-RoPE keys in fp32 at their original
// positions (first_position .. + Omega - 1), quantises keys per channel over the window and values
// per token over the channels, and packs into `block` (layout.h). k, v: [H][Omega][D] fp16.
// scratch: at least quantize_scratch_floats(g) floats. range: of the layer, where a grid is not
// F16; what lies outside is clamped to it.
void quantize_window(const Geometry& g, const RopeSpec& rope, long long first_position,
                     const fp16_t* k, const fp16_t* v, std::uint8_t* block, float* scratch,
                     const QuantRange& range = {}) noexcept;
// The same from fp32 pre-RoPE keys and fp32 values [H][Omega][D].
void quantize_window_pre_rope(const Geometry& g, const float* k_pre, const float* v,
                              std::uint8_t* block, float* scratch,
                              const QuantRange& range = {}) noexcept;
// From a block of `from` to one of `to` (fewer bits, or other grids of the same layer's range),
// by way of the dequantised values. Both have the same heads, D and Omega.
void requantize_window(const Geometry& from, const std::uint8_t* block, const Geometry& to,
                       std::uint8_t* out, float* scratch, const QuantRange& range = {}) noexcept;
std::size_t quantize_scratch_floats(const Geometry& g) noexcept;

// Dequantised values in fp32: keys before RoPE, [H][Omega][D] each.
void dequantize_window(const Geometry& g, const std::uint8_t* block, float* k_pre, float* v,
                       const QuantRange& range = {}) noexcept;
// Promotion: fp16(RoPE(dequantised key)) and fp16(dequantised value), [H][Omega][D] each.
void restore_window(const Geometry& g, const RopeSpec& rope, long long first_position,
                    const std::uint8_t* block, fp16_t* k, fp16_t* v, float* scratch,
                    const QuantRange& range = {}) noexcept;

// A layer's super-ranges from its tokens: range_begin(), range_add() for every token,
// range_finish(). extremes: range_extreme_floats(g) floats, [H][2][D] of keys, then [H][2] of
// values: lowest, highest.
std::size_t range_extreme_floats(const Geometry& g) noexcept;
void range_begin(const Geometry& g, float* extremes) noexcept;
// n tokens of one KV head: keys before RoPE and values, [n][D] each; finite.
void range_add(const Geometry& g, int kv_head, int n, const float* k_pre, const float* v,
               float* extremes) noexcept;
// Adds what was collected apart.
void range_merge(const Geometry& g, const float* extremes, float* into) noexcept;
// keys [H][2][D], values [H][2] (QuantRange). Rounded to fp16; a width is at least 0.001. At least
// one token was added to every KV head.
void range_finish(const Geometry& g, const float* extremes, fp16_t* keys, fp16_t* values) noexcept;

}  // namespace qevict
