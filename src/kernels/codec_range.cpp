// Super-ranges of a layer's grids (codec.h).
#include <algorithm>
#include <limits>

#include "kernels/codec.h"

namespace qevict {
namespace {

fp16_t narrow(float x) noexcept { return fp32_to_fp16(std::clamp(x, -65504.0F, 65504.0F)); }

}  // namespace

std::size_t range_extreme_floats(const Geometry& g) noexcept {
  return std::size_t{2} * g.n_kv_heads * (g.head_dim + 1);
}

void range_begin(const Geometry& g, float* extremes) noexcept {
  const std::ptrdiff_t dim = g.head_dim;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  float* values = extremes + 2 * g.n_kv_heads * dim;
  for (int h = 0; h < g.n_kv_heads; ++h) {
    std::fill_n(extremes + 2 * h * dim, dim, kInf);
    std::fill_n(extremes + (2 * h + 1) * dim, dim, -kInf);
    values[2 * h] = kInf;
    values[2 * h + 1] = -kInf;
  }
}

void range_add(const Geometry& g, int kv_head, int n, const float* k_pre, const float* v,
               float* extremes) noexcept {
  const std::ptrdiff_t dim = g.head_dim;
  float* low = extremes + 2 * kv_head * dim;
  float* high = low + dim;
  float* value = extremes + 2 * (g.n_kv_heads * dim + kv_head);
  for (int t = 0; t < n; ++t, k_pre += dim, v += dim) {
    for (int d = 0; d < dim; ++d) low[d] = std::min(low[d], k_pre[d]);
    for (int d = 0; d < dim; ++d) high[d] = std::max(high[d], k_pre[d]);
    for (int d = 0; d < dim; ++d) value[0] = std::min(value[0], v[d]);
    for (int d = 0; d < dim; ++d) value[1] = std::max(value[1], v[d]);
  }
}

void range_merge(const Geometry& g, const float* extremes, float* into) noexcept {
  const std::ptrdiff_t dim = g.head_dim;
  const auto merge = [&](std::ptrdiff_t at, std::ptrdiff_t n) {
    for (std::ptrdiff_t i = at; i < at + n; ++i) {
      into[i] = std::min(into[i], extremes[i]);
      into[n + i] = std::max(into[n + i], extremes[n + i]);
    }
  };
  for (std::ptrdiff_t h = 0; h < g.n_kv_heads; ++h) {
    merge(2 * h * dim, dim);
    merge(2 * (g.n_kv_heads * dim + h), 1);
  }
}

void range_finish(const Geometry& g, const float* extremes, fp16_t* keys, fp16_t* values) noexcept {
  const std::ptrdiff_t dim = g.head_dim;
  // From the rounded low end, so that the range ends at `high` up to the rounding of its width.
  const auto finish = [](float low, float high, fp16_t* range_low, fp16_t* range_width) {
    *range_low = narrow(low);
    *range_width = narrow(std::max(high - fp16_to_fp32(*range_low), 0.001F));
  };
  for (int h = 0; h < g.n_kv_heads; ++h) {
    const float* low = extremes + 2 * h * dim;
    fp16_t* out = keys + 2 * h * dim;
    for (int d = 0; d < dim; ++d) finish(low[d], low[dim + d], out + d, out + dim + d);
    const float* value = extremes + 2 * (g.n_kv_heads * dim + h);
    finish(value[0], value[1], values + 2 * h, values + 2 * h + 1);
  }
}

}  // namespace qevict
