#include "kernels/zipcache.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace qevict {
namespace {

constexpr int kProbeRows = 32;  // scored together

// Rows of scores begin at whole cache lines.
std::ptrdiff_t stride_of(int n_keys) noexcept { return (std::ptrdiff_t{n_keys} + 15) / 16 * 16; }

float load(float x) noexcept { return x; }
float load(fp16_t x) noexcept { return fp16_to_fp32(x); }

template <typename Element>
const Element* row_of(const HeadRows<Element>& rows, const ClassTokens& tokens, int head,
                      int r) noexcept {
  const std::ptrdiff_t token = tokens.ids[static_cast<std::ptrdiff_t>(head) * tokens.n + r];
  return rows.data + head * rows.head_stride + token * rows.head_dim;
}

}  // namespace

std::size_t zipcache_probe_floats(int n_keys, int head_dim) {
  return static_cast<std::size_t>(kProbeRows + 1) * stride_of(n_keys) +
         dense_scratch_bytes(kProbeRows, head_dim) / sizeof(float);
}

void zipcache_add_probes(const DenseOps& ops, const ProbeParams& params, double* sums) noexcept {
  const std::ptrdiff_t stride = stride_of(params.n_keys);
  float* scores = params.scratch;
  float* columns = scores + kProbeRows * stride;
  for (int first = 0; first < params.n_q; first += kProbeRows) {
    const int n = std::min(kProbeRows, params.n_q - first);
    DenseScoresParams p;
    p.q = params.q + first * params.q_stride;
    p.q_stride = params.q_stride;
    p.n_q = n;
    p.scale = params.scale;
    p.k = params.k;
    p.n_keys = params.n_keys;
    p.head_dim = params.head_dim;
    p.s = scores;
    p.s_stride = stride;
    p.scratch = columns + stride;
    ops.scores(p);
    for (int i = 0; i < n; ++i) {
      ops.softmax_row(scores + i * stride, params.visible[first + i], params.n_keys);
    }
    ops.column_sums(scores, stride, n, params.n_keys, 1.0F, columns);
    for (int t = 0; t < params.n_keys; ++t) sums[t] += columns[t];
  }
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
