// Byte layouts of stored windows, and copying single windows in and out of them.
//
// A tier's storage is a list of groups; a group holds 1..16 windows ("lanes") of all KV heads in
// one allocation of exactly `lanes` windows (no padding). Inside a group the KV heads follow each
// other. `lanes` is therefore the innermost stride of the lane-major parts, and the kernels get it
// with the pointer. For one KV head, n = lanes:
//
//   Full:       K  fp16 [Omega][D][n]        post-RoPE        | V  fp16 [n][Omega][D]
//   Quantized:  K codes u8 [D][Omega*b/8][n] pre-RoPE | K scale fp16 [D][n] | K zero fp16 [D][n]
//               | V codes u8 [n][Omega][D*b/8] | V scale fp16 [Omega][n] | V zero fp16 [Omega][n]
//
// A code byte of K holds consecutive tokens of one channel, a code byte of V consecutive channels
// of one token; item j of a byte sits in bits b*j .. b*j+b-1 (method.md section 6). Pure functions
// on raw pointers; no allocation; noexcept.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/fp16.h"
#include "kernels/geometry.h"

namespace qevict {

// One quantised window outside a group, in the exported order; all KV heads; size
// geometry.quantized_window_bytes(). Offsets of the parts of KV head h come from quant_block().
//   per head: k_codes u8 [D][Omega*b/8] | k_scale fp16 [D] | k_zero fp16 [D]
//             | v_codes u8 [Omega][D*b/8] | v_scale fp16 [Omega] | v_zero fp16 [Omega]
struct QuantBlock {
  std::uint8_t* k_codes;
  fp16_t* k_scale;
  fp16_t* k_zero;
  std::uint8_t* v_codes;
  fp16_t* v_scale;
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
