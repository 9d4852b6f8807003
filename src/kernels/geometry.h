// The constant shape of one model's attention and of its windows; every kernel and byte count uses
// it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qevict {

// Windows are stored in groups of kLanes: lane n of a group holds one window
// (docs/architecture.md).
inline constexpr int kLanes = 16;

// Which two channels RoPE rotates together.
enum class RopePairing : std::uint8_t {
  Neox,         // (c, c + D/2): Qwen
  Interleaved,  // (2c, 2c + 1): `llama` GGUFs, whose q and k weights are permuted for it
};

// How a quantised window stores the scale and the zero of its grids. U8 and U4 keep the two ends of
// a grid as integers inside a super-range (QuantRange) that a layer has once:
//   step = width / top (255; U4: 15), zero = low + step * a, scale = step * (b - a) / (2^bits - 1).
enum class GridFormat : std::uint8_t {
  F16,  // scale and zero in fp16: 4 bytes a grid
  U8,   // a, b in a byte each: 2 bytes
  U4,   // keys only: a in the low half of a byte, b in the high one: 1 byte
};

inline constexpr std::size_t grid_bytes(GridFormat format) {
  return format == GridFormat::F16 ? 4 : format == GridFormat::U8 ? 2 : 1;
}
// `top`: the largest end of a grid.
inline constexpr int grid_top(GridFormat format) { return format == GridFormat::U4 ? 15 : 255; }

struct Geometry {
  int n_heads = 0;     // query heads
  int n_kv_heads = 0;  // H; divides n_heads
  int head_dim = 0;    // D; a multiple of 4
  int window = 8;      // Omega, tokens a window
  int quant_bits = 2;  // bits of a code: 2, 3, 4 or 8
  RopePairing pairing = RopePairing::Neox;
  GridFormat key_grid = GridFormat::F16;
  GridFormat value_grid = GridFormat::F16;  // F16 or U8

  // Query heads that share one KV head.
  int group_size() const { return n_heads / n_kv_heads; }
  // fp16 K and V of one token, all KV heads: 4 H D bytes.
  std::size_t token_bytes() const { return std::size_t{4} * n_kv_heads * head_dim; }
  // One Full window (method.md section 3, M_f), all KV heads.
  std::size_t full_window_bytes() const { return token_bytes() * window; }
  // Packed codes of K (or of V) of one window and KV head: Omega D bits / 8.
  std::size_t code_bytes_per_head() const {
    return static_cast<std::size_t>(window) * head_dim * quant_bits / 8;
  }
  // Grids of one window and KV head: one a channel, one a token.
  std::size_t key_grid_bytes_per_head() const { return grid_bytes(key_grid) * head_dim; }
  std::size_t value_grid_bytes_per_head() const { return grid_bytes(value_grid) * window; }
  // One Quantized window (M_q): codes of K and V, key grid, value grid; all KV heads.
  std::size_t quantized_window_bytes() const {
    return n_kv_heads *
           (2 * code_bytes_per_head() + key_grid_bytes_per_head() + value_grid_bytes_per_head());
  }
  // The super-ranges of one layer (QuantRange): 0 where both grids are fp16.
  std::size_t range_bytes() const {
    const std::size_t keys = key_grid == GridFormat::F16 ? 0 : std::size_t{4} * head_dim;
    const std::size_t values = value_grid == GridFormat::F16 ? 0 : 4;
    return n_kv_heads * (keys + values);
  }
  // Whether codes fill whole bytes and the kernels take them: a row of tokens (K) and a row of
  // channels (V); with a Quantized tier the window is even.
  bool codes_fit() const {
    return window % 2 == 0 && window * quant_bits % 8 == 0 && head_dim * quant_bits % 8 == 0;
  }
};

}  // namespace qevict
