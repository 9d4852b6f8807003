#include "kernels/kivi.h"

#include <algorithm>

namespace qevict {

AffineGrid kivi_quantize(const float* x, int n, std::ptrdiff_t stride, int bits, Rounding rounding,
                         std::uint8_t* codes) noexcept {
  float min = x[0];
  float max = x[0];
  for (int i = 1; i < n; ++i) {
    min = std::min(min, x[i * stride]);
    max = std::max(max, x[i * stride]);
  }
  const AffineGrid grid = affine_grid(min, max, bits, rounding);
  for (int i = 0; i < n; ++i) codes[i] = affine_code(grid, x[i * stride], bits, rounding);
  return grid;
}

KiviSplit kivi_split(std::int64_t n_tokens, int residual) noexcept {
  return {n_tokens / residual * residual, std::max<std::int64_t>(0, n_tokens - residual)};
}

}  // namespace qevict
