// The two matrix products of prompt attention on matrix tiles (AMX), as a replacement for the fp32
// ones of prefill_simd.cpp: S = Q K^T and O += P V over one key panel (internal to kernels/).
//
// Tiles multiply bf16 and add in fp32. Every operand x is split into hi = bf16(x) and
// lo = bf16(x - hi), and hi.hi + lo.hi + hi.lo is added up: an error of about 2^-16 of a term, so
// that the results agree with the fp32 kernels' and Qwen2's large key biases do no harm.
//
// The same source is built twice: on the CPU's tiles, and on an emulation of them in plain C++,
// with which the layout and the order of operations are tested where there is no AMX.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qevict {

using bf16_t = std::uint16_t;

inline constexpr int kTileRows = 16;
inline constexpr int kTileDepth = 32;  // bf16 values of a row of A, of a column of B

// Parts of the scratch, each twice: hi, then lo. dim_pad is D rounded up to kTileDepth.
struct ProductScratch {
  bf16_t* q[2];  // [rows][dim_pad]
  bf16_t* k[2];  // [panel vectors][dim_pad / 32] tiles of 16 channel pairs x 16 keys
  bf16_t*
      v[2];  // [D rounded up to 16 / 16][panel tokens / 32] tiles of 16 token pairs x 16 channels
  bf16_t* p[2];  // [rows of a chunk][panel tokens]
};

// A packed fp32 panel (prefill_pack-inl.h): key channel c of token t is at
// k[(t / k_block * dim + c) * k_block + t % k_block], value channel c at
// v[(c / v_width * kPanelTokens + t) * v_width + c % v_width]. Only the first `lanes` tokens of
// each 16 hold values.
struct PackedPanel {
  const float* k;
  const float* v;
  int k_block, v_width, dim, n_vectors, lanes;
};

struct PanelProducts {
  // Configures the calling thread's tiles and keeps what was configured in `saved` (64 bytes), as
  // ggml configures them once a thread and relies on it; end() restores it.
  void (*begin)(void* saved) noexcept;
  void (*end)(const void* saved) noexcept;
  // q [dim], already scaled; null: zeros.
  void (*pack_query)(const ProductScratch&, int row, const float* q, float scale, int dim) noexcept;
  void (*pack_panel)(const ProductScratch&, const PackedPanel&) noexcept;
  // s [n_rows rounded up to 16][kPanelTokens] = q rows first_row .. times the panel's keys.
  void (*score)(const ProductScratch&, int first_row, int n_rows, int n_vectors, int dim,
                float* s) noexcept;
  // o [n_rows rounded up to 16][d_pad] += s times the panel's values. s is 0 beyond `lanes`.
  void (*accumulate)(const ProductScratch&, int n_rows, int n_vectors, int lanes, int dim,
                     const float* s, float* o, int d_pad) noexcept;
};

// The CPU's tiles; null where the CPU or the operating system has none, or where they do not
// reproduce the emulation's results on a small problem (checked once).
const PanelProducts* amx_products() noexcept;
const PanelProducts& emulated_products() noexcept;

}  // namespace qevict
