// Causal attention in double over all tokens: what a model's results are compared with.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "attention/attention.h"
#include "base/fp16.h"
#include "model/model.h"

namespace qevict {

// What is rounded to fp16: K (after RoPE) and V, as in the cache; with Libllama the queries and the
// probabilities too, as libllama does without flash attention.
enum class Rounding { Cache, Libllama };

class ReferenceAttention final : public Attention {
 public:
  ReferenceAttention(const HParams& h, int capacity, Rounding rounding = Rounding::Cache)
      : h_(h),
        group_(h.n_heads / h.n_kv_heads),
        kv_width_(std::size_t(h.n_kv_heads) * h.head_dim),
        q_width_(std::size_t(h.n_heads) * h.head_dim),
        capacity_(capacity),
        libllama_(rounding == Rounding::Libllama),
        q_(q_width_ * capacity),
        k_(std::size_t(h.n_layers) * capacity * kv_width_),
        v_(k_.size()),
        weights_(std::size_t(h.n_heads) * capacity) {}

  // The tokens of the block that all layers have seen become the past.
  void advance(int n_tokens) { past_ += n_tokens; }

  void prepare(int layer, const QkvBlock& b, int ith, int nth) noexcept override {
    if (ith == 0) n_tokens_ = b.n_tokens;
    for (int t = ith; t < b.n_tokens; t += nth) {
      for (int head = 0; head < h_.n_heads; ++head) {
        const std::size_t at = std::size_t(t) * q_width_ + std::size_t(head) * h_.head_dim;
        rotate(past_ + t, b.q + at, &q_[at]);
        for (int d = 0; libllama_ && d < h_.head_dim; ++d) q_[at + d] = rounded(q_[at + d]);
      }
      std::vector<double> key(h_.head_dim);
      for (int head = 0; head < h_.n_kv_heads; ++head) {
        const std::size_t at = std::size_t(t) * kv_width_ + std::size_t(head) * h_.head_dim;
        const std::size_t to = row(layer, past_ + t) + std::size_t(head) * h_.head_dim;
        rotate(past_ + t, b.k + at, key.data());
        for (int d = 0; d < h_.head_dim; ++d) {
          k_[to + d] = rounded(key[d]);
          v_[to + d] = rounded(b.v[at + d]);
        }
      }
    }
  }

  void attend(int layer, float* out, int ith, int nth) noexcept override {
    for (int head = ith; head < h_.n_heads; head += nth) {
      for (int t = 0; t < n_tokens_; ++t) attend_row(layer, head, t, out);
    }
  }

 private:
  static float rounded(double x) { return fp16_to_fp32(fp32_to_fp16(static_cast<float>(x))); }
  std::size_t row(int layer, int position) const {
    return (std::size_t(layer) * capacity_ + position) * kv_width_;
  }

  void rotate(int position, const float* x, double* out) const {
    const int half = h_.head_dim / 2;
    const bool neox = h_.rope.pairing == RopePairing::Neox;
    for (int i = 0; i < half; ++i) {
      const int a = neox ? i : 2 * i;
      const int b = neox ? i + half : 2 * i + 1;
      const double angle = position * h_.rope.inv_freq[i];
      out[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
      out[b] = x[a] * std::sin(angle) + x[b] * std::cos(angle);
    }
  }

  void attend_row(int layer, int head, int t, float* out) {
    const std::size_t at = std::size_t(t) * q_width_ + std::size_t(head) * h_.head_dim;
    const std::size_t kv = std::size_t(head / group_) * h_.head_dim;
    double* weight = &weights_[std::size_t(head) * capacity_];
    const int n = past_ + t + 1;
    double top = -INFINITY;
    for (int j = 0; j < n; ++j) {
      const float* key = &k_[row(layer, j) + kv];
      double dot = 0.0;
      for (int d = 0; d < h_.head_dim; ++d) dot += q_[at + d] * key[d];
      weight[j] = dot / std::sqrt(static_cast<double>(h_.head_dim));
      top = std::max(top, weight[j]);
    }
    double sum = 0.0;
    for (int j = 0; j < n; ++j) sum += weight[j] = std::exp(weight[j] - top);
    for (int j = 0; j < n; ++j) {
      weight[j] /= sum;
      if (libllama_) weight[j] = rounded(weight[j]);
    }
    for (int d = 0; d < h_.head_dim; ++d) {
      double x = 0.0;
      for (int j = 0; j < n; ++j) x += weight[j] * v_[row(layer, j) + kv + d];
      out[at + d] = static_cast<float>(x);
    }
  }

  const HParams& h_;
  int group_;
  std::size_t kv_width_;
  std::size_t q_width_;
  int capacity_;
  bool libllama_;
  int past_ = 0;
  int n_tokens_ = 0;
  std::vector<double> q_;        // of the block in progress
  std::vector<float> k_, v_;     // [layer][position][kv head][d], fp16 values
  std::vector<double> weights_;  // [head][position]
};

}  // namespace qevict
