// ZipCache (ThisisBillhe/ZipCache, arXiv 2405.14256): tokens are split by normalised saliency into
// important ones (4 bits) and unimportant ones (2 bits), head by head; nothing is evicted.
//
// Keys: one grid a (head, channel) and class, over the class's tokens. Values: divided by their
// channel's scale, then one grid a row; row r joins the r-th listed token of every head.
// Pure functions on raw pointers; no allocation; noexcept.
#pragma once

#include "kernels/affine.h"
#include "kernels/dense.h"

namespace qevict {

// K or V of one layer: row t of head h begins at data + h * head_stride + t * head_dim.
// Element is float or fp16_t.
template <typename Element>
struct HeadRows {
  const Element* data = nullptr;
  std::ptrdiff_t head_stride = 0;
  int n_heads = 0;
  int head_dim = 0;
};

// The tokens of one class: ids [n_heads][n], row indexes into HeadRows.
struct ClassTokens {
  const std::int32_t* ids = nullptr;
  int n = 0;
  int bits = 0;
};

// Some query rows of one head over one KV head's keys.
struct ProbeParams {
  const float* q = nullptr;  // row i at q + i * q_stride, [D], not scaled
  std::ptrdiff_t q_stride = 0;
  const std::int32_t* visible = nullptr;  // [n_q]: row i sees keys 0 .. visible[i] - 1, at least 1
  int n_q = 0;
  float scale = 1.0F;
  const fp16_t* k = nullptr;  // [n_keys][D]
  int n_keys = 0;
  int head_dim = 0;
  float* scratch = nullptr;  // zipcache_probe_floats(), 64-byte aligned
};
std::size_t zipcache_probe_floats(int n_keys, int head_dim);
// Adds the rows' softmax to sums [n_keys].
void zipcache_add_probes(const DenseOps& ops, const ProbeParams& params, double* sums) noexcept;

// Saliency -> unimportant [n_unimportant], the lowest ones in ascending order (ties: lower index
// first), and important [n - n_unimportant], ascending index. scratch [n].
void zipcache_split(const float* saliency, int n, int n_unimportant, std::int32_t* scratch,
                    std::int32_t* unimportant, std::int32_t* important) noexcept;

// grids [n_heads * head_dim].
template <typename Element>
void zipcache_key_grids(const HeadRows<Element>& k, const ClassTokens& tokens, Rounding rounding,
                        AffineGrid* grids) noexcept;
// Row r of the class: codes [n_heads * head_dim].
template <typename Element>
void zipcache_key_codes(const HeadRows<Element>& k, const ClassTokens& tokens, int r,
                        const AffineGrid* grids, std::uint8_t* codes) noexcept;
// sqrt of the largest magnitude of each channel over n_tokens rows, 1 where all are 0:
// [n_heads * head_dim].
template <typename Element>
void zipcache_channel_scales(const HeadRows<Element>& v, int n_tokens, Rounding rounding,
                             float* scales) noexcept;
// Row r of the class: codes [n_heads * head_dim] of the scaled values, and the row's grid.
template <typename Element>
AffineGrid zipcache_value_codes(const HeadRows<Element>& v, const ClassTokens& tokens, int r,
                                const float* scales, Rounding rounding,
                                std::uint8_t* codes) noexcept;

}  // namespace qevict
