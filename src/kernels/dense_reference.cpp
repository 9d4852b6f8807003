// The specification of the dense passes: one loop nest per formula, sums in double.
#include <algorithm>
#include <cmath>

#include "kernels/codec.h"
#include "kernels/tables.h"

namespace qevict {
namespace {

void reference_dense_restore(const DenseRestoreParams& p) noexcept {
  const Geometry& g = *p.geometry;
  const int pairs = g.head_dim / 2;
  const bool neox = g.pairing == RopePairing::Neox;
  const std::ptrdiff_t rows = static_cast<std::ptrdiff_t>(g.window) * g.head_dim;
  auto* k = static_cast<float*>(p.scratch);
  float* v = k + rows * g.n_kv_heads;
  auto* block = reinterpret_cast<std::uint8_t*>(v + rows * g.n_kv_heads);
  for (int lane = 0; lane < p.group->lanes; ++lane) {
    quant_group_load(g, p.group->data, p.group->lanes, lane, block);
    dequantize_window(g, block, k, v, p.range);
    for (int j = 0; j < g.window; ++j) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(j) * g.head_dim;
      const float* key = k + rows * p.kv_head + at;
      const float* value = v + rows * p.kv_head + at;
      for (int c = 0; c < pairs; ++c) {
        const int first = neox ? c : 2 * c;
        const int second = neox ? c + pairs : 2 * c + 1;
        const double base_cos = p.phases[(2 * c) * kLanes + lane];
        const double base_sin = p.phases[(2 * c + 1) * kLanes + lane];
        const double turn_cos = p.turn[at + c];
        const double turn_sin = p.turn[at + pairs + c];
        const double cos = base_cos * turn_cos - base_sin * turn_sin;
        const double sin = base_sin * turn_cos + base_cos * turn_sin;
        p.k[lane][at + first] =
            fp32_to_fp16(static_cast<float>(key[first] * cos - key[second] * sin));
        p.k[lane][at + second] =
            fp32_to_fp16(static_cast<float>(key[first] * sin + key[second] * cos));
      }
      for (int c = 0; c < g.head_dim; ++c) p.v[lane][at + c] = fp32_to_fp16(value[c]);
    }
  }
}

void reference_dense_scores(const DenseScoresParams& p) noexcept {
  for (int i = 0; i < p.n_q; ++i) {
    const float* q = p.q + i * p.q_stride;
    for (int t = 0; t < p.n_keys; ++t) {
      const fp16_t* k = p.k + static_cast<std::ptrdiff_t>(t) * p.head_dim;
      double sum = 0.0;
      for (int c = 0; c < p.head_dim; ++c) sum += static_cast<double>(q[c]) * fp16_to_fp32(k[c]);
      p.s[i * p.s_stride + t] = static_cast<float>(p.scale * sum);
    }
  }
}

void reference_dense_values(const DenseValuesParams& p) noexcept {
  for (int i = 0; i < p.n_q; ++i) {
    float* out = p.out + i * p.out_stride;
    for (int c = 0; c < p.head_dim; ++c) {
      double sum = p.add ? out[c] : 0.0;
      for (int t = 0; t < p.n_keys; ++t) {
        sum += static_cast<double>(p.p[i * p.p_stride + t]) *
               fp16_to_fp32(p.v[static_cast<std::ptrdiff_t>(t) * p.head_dim + c]);
      }
      out[c] = static_cast<float>(sum);
    }
  }
}

void reference_dense_softmax_row(float* s, int n_visible, int n) noexcept {
  const float highest = *std::max_element(s, s + n_visible);
  double sum = 0.0;
  for (int t = 0; t < n_visible; ++t) sum += std::exp(static_cast<double>(s[t]) - highest);
  for (int t = 0; t < n_visible; ++t) {
    s[t] = static_cast<float>(std::exp(static_cast<double>(s[t]) - highest) / sum);
  }
  std::fill(s + n_visible, s + std::max(n, n_visible), 0.0F);
}

void reference_dense_column_sums(const float* p, std::ptrdiff_t stride, int n_rows, int n,
                                 float power, float* sums) noexcept {
  for (int t = 0; t < n; ++t) {
    double sum = 0.0;
    for (int i = 0; i < n_rows; ++i) {
      const double x = p[i * stride + t];
      sum += power == 1.0F ? x : std::pow(x, static_cast<double>(power));
    }
    sums[t] = static_cast<float>(sum);
  }
}

}  // namespace

const DenseOps kReferenceDenseOps = {reference_dense_restore, reference_dense_scores,
                                     reference_dense_values, reference_dense_softmax_row,
                                     reference_dense_column_sums};

}  // namespace qevict
