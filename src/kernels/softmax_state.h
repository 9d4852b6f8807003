// A partial attention result that can be merged with another one.
//
// For the g query heads of one KV head: o [g][D] = sum of exp(s - m) * v, m [g] = largest score
// seen, l [g] = sum of exp(s - m). The empty state is o = 0, m = -inf, l = 0; merging with it
// changes nothing. The finished output is o / l. Merging in a fixed order gives the same bits every
// time.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>

namespace qevict {

struct SoftmaxState {
  float* o;  // [n_heads][head_dim]
  float* m;  // [n_heads]
  float* l;  // [n_heads]
};

inline void softmax_reset(const SoftmaxState& s, int n_heads, int head_dim) noexcept {
  for (int i = 0; i < n_heads * head_dim; ++i) s.o[i] = 0.0F;
  for (int h = 0; h < n_heads; ++h) {
    s.m[h] = -std::numeric_limits<float>::infinity();
    s.l[h] = 0.0F;
  }
}

// into <- into + from.
inline void softmax_merge(const SoftmaxState& into, const SoftmaxState& from, int n_heads,
                          int head_dim) noexcept {
  for (int h = 0; h < n_heads; ++h) {
    if (from.l[h] == 0.0F) continue;  // empty: exp(-inf - -inf) would be NaN
    const float m = into.m[h] > from.m[h] ? into.m[h] : from.m[h];
    const float a = into.l[h] == 0.0F ? 0.0F : std::exp(into.m[h] - m);
    const float b = std::exp(from.m[h] - m);
    float* o = into.o + static_cast<std::ptrdiff_t>(h) * head_dim;
    const float* p = from.o + static_cast<std::ptrdiff_t>(h) * head_dim;
    for (int d = 0; d < head_dim; ++d) o[d] = o[d] * a + p[d] * b;
    into.l[h] = into.l[h] * a + from.l[h] * b;
    into.m[h] = m;
  }
}

}  // namespace qevict
