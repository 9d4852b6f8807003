// Attention in separate passes over dense rows: what a fused kernel is compared with.
//
// Scores, softmax, values and column sums each read and write whole matrices in memory. The passes
// are as fast as the fused prompt kernel's products, so that a comparison shows the cost of the
// passes and of what they need, not of slow arithmetic. Same contract as kernels.h: pure, noexcept,
// no allocation.
#pragma once

#include <cstddef>

#include "base/fp16.h"
#include "kernels/kernels.h"

namespace qevict {

// s[i][t] = scale * (q[i] . k[t]) for i < n_q, t < n_keys.
struct DenseScoresParams {
  const float* q = nullptr;  // row i at q + i * q_stride, [D]
  std::ptrdiff_t q_stride = 0;
  int n_q = 0;
  float scale = 1.0F;
  const fp16_t* k = nullptr;  // [n_keys][D]
  int n_keys = 0;
  int head_dim = 0;  // a multiple of 4, at most kMaxHeadDim
  float* s = nullptr;
  std::ptrdiff_t s_stride = 0;
  void* scratch = nullptr;  // dense_scratch_bytes(n_q, head_dim), 64-byte aligned
};

// out[i] (+)= sum over t < n_keys of p[i][t] * v[t].
struct DenseValuesParams {
  const float* p = nullptr;
  std::ptrdiff_t p_stride = 0;
  int n_q = 0;
  const fp16_t* v = nullptr;  // [n_keys][D]
  int n_keys = 0;
  int head_dim = 0;
  float* out = nullptr;  // row i at out + i * out_stride, [D]
  std::ptrdiff_t out_stride = 0;
  bool add = false;         // false: out is overwritten
  void* scratch = nullptr;  // as above
};

// Brings one KV head of a Quantized group back as fp16 rows: dequantised, keys rotated.
struct DenseRestoreParams {
  const Geometry* geometry = nullptr;
  int kv_head = 0;
  const GroupRef* group = nullptr;
  QuantRange range{};             // of the layer, where a grid is not F16
  const float* phases = nullptr;  // [D/2][2][kLanes]: of the lanes' window bases
  const float* turn = nullptr;    // [Omega][2][D/2]: cos, sin of the angles of 0 .. Omega-1
  fp16_t* k[kLanes]{};            // where each lane's rows go, [Omega][D]
  fp16_t* v[kLanes]{};
  void* scratch = nullptr;  // dense_restore_scratch_bytes(), 64-byte aligned
};

struct DenseOps {
  void (*restore)(const DenseRestoreParams&) noexcept;
  void (*scores)(const DenseScoresParams&) noexcept;
  void (*values)(const DenseValuesParams&) noexcept;
  // Softmax of the first n_visible >= 1 scores in place; scores n_visible .. n - 1 become 0.
  void (*softmax_row)(float* s, int n_visible, int n) noexcept;
  // sums[t] = sum over rows i of p[i][t]^power, t < n.
  void (*column_sums)(const float* p, std::ptrdiff_t stride, int n_rows, int n, float power,
                      float* sums) noexcept;
};

// Upper bound of the scratch that scores() and values() need for n_q rows.
std::size_t dense_scratch_bytes(int n_q, int head_dim);
std::size_t dense_restore_scratch_bytes(const Geometry& g);

}  // namespace qevict
