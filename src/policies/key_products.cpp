#include "policies/key_products.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "base/clones.h"

namespace qevict {
namespace {

constexpr int kGroup = 16;  // tokens in a group

// kRows products with one group of tokens.
template <int kRows>
QE_INLINE void multiply_group(const float* x, const float* group, int head_dim, float* out,
                              std::size_t stride) {
  float sum[kRows][kGroup] = {};
  for (int c = 0; c < head_dim; ++c) {
    const float* k = group + static_cast<std::size_t>(c) * kGroup;
    for (int r = 0; r < kRows; ++r) {
      const float q = x[static_cast<std::size_t>(r) * head_dim + c];
      for (int t = 0; t < kGroup; ++t) sum[r][t] += q * k[t];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kGroup; ++t) out[r * stride + t] = sum[r][t];
  }
}

// n_rows products with n tokens, whole groups of them.
QE_CLONES void multiply_all(const float* groups, std::size_t n, int head_dim, const float* x,
                            int n_rows, float* out, std::size_t stride) {
  const std::size_t d = static_cast<std::size_t>(head_dim);
  for (std::size_t t = 0; t < n; t += kGroup) {
    const float* group = groups + t * d;
    int r = 0;
    for (; r + 4 <= n_rows; r += 4) {
      multiply_group<4>(x + r * d, group, head_dim, out + r * stride + t, stride);
    }
    for (; r < n_rows; ++r) {
      multiply_group<1>(x + r * d, group, head_dim, out + r * stride + t, stride);
    }
  }
}

QE_INLINE float exp_one(float x) {
  // x = n ln 2 + r; adding 1.5 * 2^23 rounds to a whole number without a call.
  constexpr float kRound = 12582912.0F;
  x = std::max(x, -87.0F);
  const float shifted = x * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const std::uint32_t power = (std::bit_cast<std::uint32_t>(shifted) << 23) + 0x3f800000U;
  return p * std::bit_cast<float>(power);
}

}  // namespace

void KeyProducts::assign(const float* k, int n, int head_dim) {
  n_ = n;
  head_dim_ = head_dim;
  const std::size_t n_groups = (static_cast<std::size_t>(n) + kGroup - 1) / kGroup;
  n_padded_ = n_groups * kGroup;
  // Rows a power of two apart would share the same few lines of the cache.
  stride_ = n_padded_ + 16;
  groups_.assign(n_padded_ * head_dim, 0.0F);
  for (int t = 0; t < n; ++t) {
    float* group = groups_.data() + static_cast<std::size_t>(t / kGroup) * head_dim * kGroup;
    const float* row = k + static_cast<std::size_t>(t) * head_dim;
    for (int c = 0; c < head_dim; ++c) group[c * kGroup + t % kGroup] = row[c];
  }
}

void KeyProducts::multiply(const float* x, int n_rows, float* out) const {
  multiply_all(groups_.data(), n_padded_, head_dim_, x, n_rows, out, stride_);
}

void KeyProducts::quadratic(const float* m, float* out) const {
  const std::size_t d = static_cast<std::size_t>(head_dim_);
  std::vector<float> products(d * kGroup);
  for (std::size_t t = 0; t < n_padded_; t += kGroup) {
    const float* group = groups_.data() + t * d;
    multiply_all(group, kGroup, head_dim_, m, head_dim_, products.data(), kGroup);
    float sum[kGroup] = {};
    for (std::size_t c = 0; c < d; ++c) {
      for (int i = 0; i < kGroup; ++i) sum[i] += products[c * kGroup + i] * group[c * kGroup + i];
    }
    for (int i = 0; i < kGroup; ++i) out[t + i] = sum[i];
  }
}

QE_CLONES void exp_of(float* x, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) x[i] = exp_one(x[i]);
}

QE_CLONES void softmax_row(float* x, int n_visible, int n, float scale) {
  const std::size_t whole = static_cast<std::size_t>(n_visible) / kGroup * kGroup;
  float lanes[kGroup];
  std::fill(lanes, lanes + kGroup, -std::numeric_limits<float>::infinity());
  for (std::size_t i = 0; i < whole; i += kGroup) {
    for (int j = 0; j < kGroup; ++j) {
      x[i + j] *= scale;
      lanes[j] = std::max(lanes[j], x[i + j]);
    }
  }
  float max = *std::max_element(lanes, lanes + kGroup);
  for (int i = static_cast<int>(whole); i < n_visible; ++i) max = std::max(max, x[i] *= scale);
  std::fill(lanes, lanes + kGroup, 0.0F);
  for (std::size_t i = 0; i < whole; i += kGroup) {
    for (int j = 0; j < kGroup; ++j) {
      x[i + j] = exp_one(x[i + j] - max);
      lanes[j] += x[i + j];
    }
  }
  double sum = 0.0;
  for (const float lane : lanes) sum += lane;
  for (int i = static_cast<int>(whole); i < n_visible; ++i) sum += x[i] = exp_one(x[i] - max);
  const float inverse = n_visible > 0 ? static_cast<float>(1.0 / sum) : 0.0F;
  for (int i = 0; i < n_visible; ++i) x[i] *= inverse;
  std::fill(x + n_visible, x + n, 0.0F);
}

}  // namespace qevict
