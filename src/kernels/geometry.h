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

struct Geometry {
  int n_heads = 0;     // query heads
  int n_kv_heads = 0;  // H; divides n_heads
  int head_dim = 0;    // D; a multiple of 4 (of 8 bytes where bits = 2: see quantized_window_bytes)
  int window = 8;      // Omega, tokens a window; a multiple of 4 where a Quantized tier exists
  int quant_bits = 2;  // bits of a code: 2 or 4
  RopePairing pairing = RopePairing::Neox;

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
  // One Quantized window (M_q): codes of K and V, key grid, value grid; all KV heads.
  std::size_t quantized_window_bytes() const {
    const std::size_t key_grid = std::size_t{4} * head_dim;
    const std::size_t value_grid = std::size_t{4} * window;
    return n_kv_heads * (2 * code_bytes_per_head() + key_grid + value_grid);
  }
};

}  // namespace qevict
