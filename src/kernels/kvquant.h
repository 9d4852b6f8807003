// KVQuant (SqueezeAILab/KVQuant), simplified: a non-uniform codebook on normalised values, and the
// few outliers apart. Keys before RoPE with limits per channel, values with limits per token.
//
// Pure functions on raw pointers; no allocation; noexcept.
#pragma once

#include "kernels/affine.h"

namespace qevict {

// What the codebook spans; both are fp16 values.
struct NuqLimits {
  float lower = 0.0F;
  float upper = 0.0F;
};

// x ~ lut[code] * range + offset.
struct NuqGrid {
  float offset = 0.0F;
  float range = 0.0F;
};

// Quantile `share` of n ascending values, interpolated between neighbours.
float sorted_quantile(const float* ascending, int n, double share) noexcept;

// Limits of one channel, between which all but a share 1 - sparsity of its n values lie (spaced
// `stride` apart). scratch [n].
NuqLimits kvquant_channel_limits(const float* x, int n, std::ptrdiff_t stride, double sparsity,
                                 float* scratch) noexcept;
// What lies strictly outside its channel's limits is an outlier.
inline bool kvquant_key_outlier(const NuqLimits& limits, float x) noexcept {
  return x > limits.upper || x < limits.lower;
}

// One token's n values: those at or beyond the outer quantiles are outliers (at least two); limits
// of the rest with every outlier replaced by the median. outlier [n] (0 or 1), scratch [n].
NuqLimits kvquant_value_limits(const float* x, int n, double sparsity, float* scratch,
                               std::uint8_t* outlier) noexcept;

// Keys: computed in fp16 (Rounding::F16), values: in fp32.
NuqGrid kvquant_grid(const NuqLimits& limits, Rounding rounding) noexcept;
// (x - offset) / range; 0 where the range is 0.
float kvquant_normalise(const NuqGrid& grid, float x) noexcept;
// The nearest entry of lut [n]; the first of two equally near ones.
std::uint8_t kvquant_code(const float* lut, int n, float normalised) noexcept;
// What a codebook entry means. Rounding::F16: every operation's result is rounded, as the peer does
// with its NormalFloat codebook; F32: only the last one.
inline fp16_t kvquant_value(const NuqGrid& grid, float entry, Rounding rounding) noexcept {
  const float product = round_to(rounding, round_to(rounding, entry) * grid.range);
  return fp32_to_fp16(product + grid.offset);
}
// The same for all entries: table [n].
void kvquant_table(const NuqGrid& grid, const float* lut, int n, Rounding rounding,
                   fp16_t* table) noexcept;

// The uniform codebook has an arithmetic of its own: code = round(factor * x - offset), all in fp16
// except the product and the difference.
struct UniformGrid {
  float factor = 0.0F;
  float offset = 0.0F;
};
UniformGrid kvquant_uniform_grid(const NuqLimits& limits, int bits) noexcept;
std::uint8_t kvquant_uniform_code(const UniformGrid& grid, float x, int bits) noexcept;
void kvquant_uniform_table(const UniformGrid& grid, int bits, fp16_t* table) noexcept;

// k-means of normalised values given as counts over n_bins equal bins of [-1, 1]: lut [n]
// ascending, n at most 16. Deterministic: starts at the quantiles, ends when nothing moves.
void kvquant_codebook(const std::int64_t* counts, int n_bins, int n, float* lut) noexcept;
// The bin of a normalised value.
int kvquant_bin(float normalised, int n_bins) noexcept;

}  // namespace qevict
