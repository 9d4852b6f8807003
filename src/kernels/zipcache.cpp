#include "kernels/zipcache.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace qevict {
namespace {

float load(float x) noexcept { return x; }
float load(fp16_t x) noexcept { return fp16_to_fp32(x); }

template <typename Element>
const Element* row_of(const HeadRows<Element>& rows, const ClassTokens& tokens, int head,
                      int r) noexcept {
  const std::ptrdiff_t token = tokens.ids[static_cast<std::ptrdiff_t>(head) * tokens.n + r];
  return rows.data + head * rows.head_stride + token * rows.head_dim;
}

}  // namespace

void zipcache_add_probe(const float* q, int head_dim, float scale, std::int32_t position,
                        const float* k_columns, const std::int32_t* positions, int n_keys,
                        float* scratch, double* sums) noexcept {
  constexpr int kBlock = 256;  // scores stay in the first cache while the channels pass
  float max = -std::numeric_limits<float>::infinity();
  for (int begin = 0; begin < n_keys; begin += kBlock) {
    const int n = std::min(kBlock, n_keys - begin);
    float* s = scratch + begin;
    std::fill_n(s, n, 0.0F);
    for (int c = 0; c < head_dim; ++c) {
      const float* column = k_columns + static_cast<std::ptrdiff_t>(c) * n_keys + begin;
      const float factor = q[c] * scale;
      for (int j = 0; j < n; ++j) s[j] += factor * column[j];
    }
    for (int j = 0; j < n; ++j) {
      if (positions[begin + j] <= position) max = std::max(max, s[j]);
    }
  }
  double total = 0.0;
  for (int j = 0; j < n_keys; ++j) {
    scratch[j] = positions[j] <= position ? std::exp(scratch[j] - max) : 0.0F;
    total += scratch[j];
  }
  if (total == 0.0) return;  // sees nothing
  const double inverse = 1.0 / total;
  for (int j = 0; j < n_keys; ++j) sums[j] += scratch[j] * inverse;
}

void zipcache_split(const float* saliency, int n, int n_unimportant, std::int32_t* scratch,
                    std::int32_t* unimportant, std::int32_t* important) noexcept {
  for (int i = 0; i < n; ++i) scratch[i] = i;
  const auto lower = [&](std::int32_t a, std::int32_t b) {
    return saliency[a] != saliency[b] ? saliency[a] < saliency[b] : a < b;
  };
  std::sort(scratch, scratch + n, lower);
  std::copy_n(scratch, n_unimportant, unimportant);
  std::sort(scratch + n_unimportant, scratch + n);
  std::copy(scratch + n_unimportant, scratch + n, important);
}

template <typename Element>
void zipcache_key_grids(const HeadRows<Element>& k, const ClassTokens& tokens, Rounding rounding,
                        AffineGrid* grids) noexcept {
  const int d = k.head_dim;
  for (int h = 0; h < k.n_heads; ++h) {
    AffineGrid* head = grids + static_cast<std::ptrdiff_t>(h) * d;
    // Until the last loop a grid holds (max, min).
    std::fill_n(head, d,
                AffineGrid{-std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::infinity()});
    for (int r = 0; r < tokens.n; ++r) {
      const Element* row = row_of(k, tokens, h, r);
      for (int c = 0; c < d; ++c) {
        head[c].scale = std::max(head[c].scale, load(row[c]));
        head[c].zero = std::min(head[c].zero, load(row[c]));
      }
    }
    for (int c = 0; c < d; ++c) {
      head[c] = tokens.n == 0 ? AffineGrid{}
                              : affine_grid(head[c].zero, head[c].scale, tokens.bits, rounding);
    }
  }
}

template <typename Element>
void zipcache_key_codes(const HeadRows<Element>& k, const ClassTokens& tokens, int r,
                        const AffineGrid* grids, std::uint8_t* codes) noexcept {
  const int d = k.head_dim;
  for (int h = 0; h < k.n_heads; ++h) {
    const Element* row = row_of(k, tokens, h, r);
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(h) * d;
    for (int c = 0; c < d; ++c) {
      codes[at + c] = affine_code(grids[at + c], load(row[c]), tokens.bits, Rounding::F32);
    }
  }
}

template <typename Element>
void zipcache_channel_scales(const HeadRows<Element>& v, int n_tokens, Rounding rounding,
                             float* scales) noexcept {
  const int d = v.head_dim;
  for (int h = 0; h < v.n_heads; ++h) {
    float* head = scales + static_cast<std::ptrdiff_t>(h) * d;
    std::fill_n(head, d, 0.0F);
    for (int t = 0; t < n_tokens; ++t) {
      const Element* row = v.data + h * v.head_stride + static_cast<std::ptrdiff_t>(t) * d;
      for (int c = 0; c < d; ++c) head[c] = std::max(head[c], std::fabs(load(row[c])));
    }
    for (int c = 0; c < d; ++c) {
      head[c] = head[c] == 0.0F ? 1.0F : round_to(rounding, std::sqrt(head[c]));
    }
  }
}

template <typename Element>
AffineGrid zipcache_value_codes(const HeadRows<Element>& v, const ClassTokens& tokens, int r,
                                const float* scales, Rounding rounding,
                                std::uint8_t* codes) noexcept {
  const int d = v.head_dim;
  float min = std::numeric_limits<float>::infinity();
  float max = -min;
  for (int h = 0; h < v.n_heads; ++h) {
    const Element* row = row_of(v, tokens, h, r);
    for (int c = 0; c < d; ++c) {
      const float x = load(row[c]) / scales[static_cast<std::ptrdiff_t>(h) * d + c];
      min = std::min(min, x);
      max = std::max(max, x);
    }
  }
  const AffineGrid grid = affine_grid(round_to(rounding, min), max, tokens.bits, rounding);
  for (int h = 0; h < v.n_heads; ++h) {
    const Element* row = row_of(v, tokens, h, r);
    for (int c = 0; c < d; ++c) {
      const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(h) * d + c;
      codes[at] = affine_code(grid, load(row[c]) / scales[at], tokens.bits, Rounding::F32);
    }
  }
  return grid;
}

#define QE_INSTANTIATE(Element)                                                                    \
  template void zipcache_key_grids(const HeadRows<Element>&, const ClassTokens&, Rounding,         \
                                   AffineGrid*) noexcept;                                          \
  template void zipcache_key_codes(const HeadRows<Element>&, const ClassTokens&, int,              \
                                   const AffineGrid*, std::uint8_t*) noexcept;                     \
  template void zipcache_channel_scales(const HeadRows<Element>&, int, Rounding, float*) noexcept; \
  template AffineGrid zipcache_value_codes(const HeadRows<Element>&, const ClassTokens&, int,      \
                                           const float*, Rounding, std::uint8_t*) noexcept;
QE_INSTANTIATE(float)
QE_INSTANTIATE(fp16_t)
#undef QE_INSTANTIATE

}  // namespace qevict
