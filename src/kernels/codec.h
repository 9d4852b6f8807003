// The quantiser, written once (method.md section 6; vectors: quantizer.json). Scalar: the
// specification.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/fp16.h"
#include "kernels/geometry.h"
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
// scratch: at least quantize_scratch_floats(g) floats.
void quantize_window(const Geometry& g, const RopeSpec& rope, long long first_position,
                     const fp16_t* k, const fp16_t* v, std::uint8_t* block,
                     float* scratch) noexcept;
// The same from fp32 pre-RoPE keys and fp32 values [H][Omega][D].
void quantize_window_pre_rope(const Geometry& g, const float* k_pre, const float* v,
                              std::uint8_t* block, float* scratch) noexcept;
std::size_t quantize_scratch_floats(const Geometry& g) noexcept;

// Dequantised values in fp32: keys before RoPE, [H][Omega][D] each.
void dequantize_window(const Geometry& g, const std::uint8_t* block, float* k_pre,
                       float* v) noexcept;
// Promotion: fp16(RoPE(dequantised key)) and fp16(dequantised value), [H][Omega][D] each.
void restore_window(const Geometry& g, const RopeSpec& rope, long long first_position,
                    const std::uint8_t* block, fp16_t* k, fp16_t* v, float* scratch) noexcept;

}  // namespace qevict
