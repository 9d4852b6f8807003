// KIVI (jy-yuan/KIVI): keys per channel over groups of tokens, post-RoPE; values per token over
// groups of channels; the newest tokens stay in the model's precision.
//
// Pure functions on raw pointers; no allocation; noexcept.
#pragma once

#include "kernels/affine.h"

namespace qevict {

// Group of n values spaced `stride` apart -> its grid, codes [n].
AffineGrid kivi_quantize(const float* x, int n, std::ptrdiff_t stride, int bits, Rounding rounding,
                         std::uint8_t* codes) noexcept;

// How many of the oldest keys and values are quantised when n_tokens have been seen: keys in steps
// of `residual`, values all but the newest `residual`.
struct KiviSplit {
  std::int64_t keys = 0;
  std::int64_t values = 0;
};
KiviSplit kivi_split(std::int64_t n_tokens, int residual) noexcept;

}  // namespace qevict
