// Products of a head's keys with many vectors, and softmax over rows of them.
//
// Written so that compilers vectorise over tokens: keys are regrouped, sums run in a fixed order.
#pragma once

#include <cstddef>
#include <vector>

namespace qevict {

class KeyProducts {
 public:
  // k [n][head_dim] is copied, eight tokens to a group: [n / 8][head_dim][8].
  void assign(const float* k, int n, int head_dim);
  int n_tokens() const { return n_; }
  // Floats between rows of products, somewhat more than n_tokens().
  std::size_t stride() const { return stride_; }
  // out[row][token] = x[row] . k[token] for x [n_rows][head_dim]; out [n_rows][stride()], of
  // which only the first n_tokens() matter.
  void multiply(const float* x, int n_rows, float* out) const;
  // out[token] = k[token] . m k[token] for a square matrix m [head_dim][head_dim]; out [stride()].
  void quadratic(const float* m, float* out) const;

 private:
  int n_ = 0;
  int head_dim_ = 0;
  std::size_t n_padded_ = 0, stride_ = 0;
  std::vector<float> groups_;
};

// x[i] = exp(scale * x[i] - max) / sum over the first n_visible; the others of the n become 0.
// All n are 0 when none is visible.
void softmax_row(float* x, int n_visible, int n, float scale);

// exp(x) for x <= 0 within 2e-7 relative; what lies below -87 gives exp(-87).
void exp_of(float* x, std::size_t n);

}  // namespace qevict
