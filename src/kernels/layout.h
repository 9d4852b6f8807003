// Byte layouts of stored windows, and copying single windows in and out of them.
//
// A tier's storage is a list of groups; a group holds 1..16 windows ("lanes") of all KV heads in
// one allocation of exactly `lanes` windows (no padding). Inside a group the KV heads follow each
// other. `lanes` is therefore the innermost stride of the lane-major parts, and the kernels get it
// with the pointer. For one KV head, n = lanes:
//
//   Full:       K  fp16 [Omega][D][n]        post-RoPE        | V  fp16 [n][Omega][D]
//   Quantized:  K codes u8 [D][Omega*b/8][n] pre-RoPE | K grid
//               | V codes u8 [n][Omega][D*b/8]      | V grid
//
// Codes of b = 2, 4 or 8 bits: a code byte of K holds consecutive tokens of one channel, a code
// byte of V consecutive channels of one token; item j of a byte sits in bits b*j .. b*j+b-1
// (method.md section 6). b = 3: a row of m items (Omega tokens, D channels) is two planes, m/4
// bytes with the low 2 bits of each code, then m/8 bytes with its high bit; each as above with b =
// 2, 1.
//
// Grids, by format (geometry.h); m is D for K and Omega for V:
//   F16:  scale fp16 [m][n] | zero fp16 [m][n]
//   U8:   a u8 [m][n] | b u8 [m][n]
//   U4:   u8 [m][n], a + 16 b
//
// Pure functions on raw pointers; no allocation; noexcept.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/fp16.h"
#include "kernels/geometry.h"

namespace qevict {

// The super-ranges of one layer, for grids that are not F16: every grid of the layer lies inside.
// Keys before RoPE. A null pointer where the format needs none.
struct QuantRange {
  const fp16_t* keys = nullptr;    // [H][2][D]: low, width of each channel
  const fp16_t* values = nullptr;  // [H][2]
};

// One KV head's parts of a Quantized group of `lanes` windows.
struct QuantView {
  int lanes;
  const std::uint8_t* k_codes;
  const std::uint8_t* k_grid;
  const std::uint8_t* v_codes;
  const std::uint8_t* v_grid;
  const std::uint8_t* end;
};
QuantView quant_view(const Geometry& g, const std::uint8_t* group, int lanes, int kv_head) noexcept;

// One quantised window outside a group, in the exported order (a group of one lane); all KV heads;
// size geometry.quantized_window_bytes(). quant_block() gives the parts of KV head h:
//   per head: k_codes u8 [D][Omega*b/8] | K grid | v_codes u8 [Omega][D*b/8] | V grid
struct QuantBlock {
  std::uint8_t* k_codes;
  std::uint8_t* k_grid;
  std::uint8_t* v_codes;
  std::uint8_t* v_grid;
  // F16 grids only.
  fp16_t* k_scale;  // [D]
  fp16_t* k_zero;
  fp16_t* v_scale;  // [Omega]
  fp16_t* v_zero;
};
QuantBlock quant_block(const Geometry& g, std::uint8_t* block, int kv_head) noexcept;

// Copies one window between a Full group and token-major rows k, v [H][Omega][D].
void full_group_store(const Geometry& g, std::uint8_t* group, int lanes, int lane, const fp16_t* k,
                      const fp16_t* v) noexcept;
void full_group_load(const Geometry& g, const std::uint8_t* group, int lanes, int lane, fp16_t* k,
                     fp16_t* v) noexcept;
// Copies one window between a Quantized group and a QuantBlock's bytes. Codes are copied verbatim.
void quant_group_store(const Geometry& g, std::uint8_t* group, int lanes, int lane,
                       const std::uint8_t* block) noexcept;
void quant_group_load(const Geometry& g, const std::uint8_t* group, int lanes, int lane,
                      std::uint8_t* block) noexcept;

}  // namespace qevict
