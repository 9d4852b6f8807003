#include "kernels/kvquant.h"

#include <algorithm>
#include <cmath>

namespace qevict {
namespace {

constexpr int kMaxCodes = 16;

float half(float x) noexcept { return round_to(Rounding::F16, x); }

double bin_middle(int bin, int n_bins) noexcept { return (2.0 * bin + 1.0) / n_bins - 1.0; }

}  // namespace

float sorted_quantile(const float* ascending, int n, double share) noexcept {
  const double at = share * (n - 1);
  const int low = std::clamp(static_cast<int>(at), 0, n - 1);
  const int high = std::min(low + 1, n - 1);
  const double x = ascending[low];
  return static_cast<float>(x + (ascending[high] - x) * (at - low));
}

NuqLimits kvquant_channel_limits(const float* x, int n, std::ptrdiff_t stride, double sparsity,
                                 float* scratch) noexcept {
  for (int i = 0; i < n; ++i) scratch[i] = x[i * stride];
  std::sort(scratch, scratch + n);
  const double outer = 1.0 - (1.0 - sparsity) / 2.0;
  return {half(sorted_quantile(scratch, n, 1.0 - outer)), half(sorted_quantile(scratch, n, outer))};
}

NuqLimits kvquant_value_limits(const float* x, int n, double sparsity, float* scratch,
                               std::uint8_t* outlier) noexcept {
  std::copy_n(x, n, scratch);
  std::sort(scratch, scratch + n);
  const double outer = 1.0 - (1.0 - sparsity) / 2.0;
  const float lower = sorted_quantile(scratch, n, 1.0 - outer);
  const float upper = sorted_quantile(scratch, n, outer);
  const float median = scratch[(n - 1) / 2];
  NuqLimits limits{median, median};
  bool any = false;
  for (int i = 0; i < n; ++i) {
    outlier[i] = x[i] >= upper || x[i] <= lower ? 1 : 0;
    const float kept = outlier[i] != 0 ? median : x[i];
    limits.lower = any ? std::min(limits.lower, kept) : kept;
    limits.upper = any ? std::max(limits.upper, kept) : kept;
    any = true;
  }
  return {half(limits.lower), half(limits.upper)};
}

NuqGrid kvquant_grid(const NuqLimits& limits, Rounding rounding) noexcept {
  const float sum = round_to(rounding, limits.upper + limits.lower);
  const float difference = round_to(rounding, limits.upper - limits.lower);
  return {round_to(rounding, sum / 2.0F), round_to(rounding, difference / 2.0F)};
}

float kvquant_normalise(const NuqGrid& grid, float x) noexcept {
  return grid.range == 0.0F ? 0.0F : (x - grid.offset) / grid.range;
}

std::uint8_t kvquant_code(const float* lut, int n, float normalised) noexcept {
  int best = 0;
  float distance = std::fabs(lut[0] - normalised);
  for (int i = 1; i < n; ++i) {
    const float d = std::fabs(lut[i] - normalised);
    if (d < distance) {
      distance = d;
      best = i;
    }
  }
  return static_cast<std::uint8_t>(best);
}

void kvquant_table(const NuqGrid& grid, const float* lut, int n, Rounding rounding,
                   fp16_t* table) noexcept {
  for (int i = 0; i < n; ++i) {
    table[i] = kvquant_value(grid, lut[i], rounding);
  }
}

UniformGrid kvquant_uniform_grid(const NuqLimits& limits, int bits) noexcept {
  const float range = half(limits.upper - limits.lower);
  if (range == 0.0F) return {0.0F, limits.lower};
  const auto levels = static_cast<float>((1 << bits) - 1);
  const float factor = half(levels * half(1.0F / range));
  return {factor, half(limits.lower * factor)};
}

std::uint8_t kvquant_uniform_code(const UniformGrid& grid, float x, int bits) noexcept {
  if (grid.factor == 0.0F) return 0;
  const auto levels = static_cast<float>((1 << bits) - 1);
  return static_cast<std::uint8_t>(
      std::nearbyint(std::clamp(grid.factor * x - grid.offset, 0.0F, levels)));
}

void kvquant_uniform_table(const UniformGrid& grid, int bits, fp16_t* table) noexcept {
  for (int code = 0; code < 1 << bits; ++code) {
    table[code] = grid.factor == 0.0F
                      ? fp32_to_fp16(grid.offset)
                      : fp32_to_fp16(half(static_cast<float>(code) + grid.offset) / grid.factor);
  }
}

int kvquant_bin(float normalised, int n_bins) noexcept {
  const auto bins = static_cast<float>(n_bins);
  const float at = (normalised + 1.0F) * 0.5F * bins;
  return static_cast<int>(std::clamp(at, 0.0F, bins - 1.0F));
}

void kvquant_codebook(const std::int64_t* counts, int n_bins, int n, float* lut) noexcept {
  std::int64_t total = 0;
  for (int b = 0; b < n_bins; ++b) total += counts[b];
  // Quantiles of the middles of n equal shares; an even spread where there is nothing to learn.
  double centre[kMaxCodes];
  std::int64_t seen = 0;
  int next = 0;
  for (int b = 0; b < n_bins && total > 0; ++b) {
    seen += counts[b];
    while (next < n && seen * 2 * n >= total * (2 * next + 1)) {
      centre[next++] = bin_middle(b, n_bins);
    }
  }
  for (; next < n; ++next) centre[next] = n > 1 ? 2.0 * next / (n - 1) - 1.0 : 0.0;
  for (int round = 0; round < 100; ++round) {
    double sum[kMaxCodes] = {};
    std::int64_t count[kMaxCodes] = {};
    for (int b = 0; b < n_bins; ++b) {
      if (counts[b] == 0) continue;
      const double x = bin_middle(b, n_bins);
      int k = 0;
      for (int i = 1; i < n; ++i) {
        if (std::fabs(centre[i] - x) < std::fabs(centre[k] - x)) k = i;
      }
      sum[k] += x * static_cast<double>(counts[b]);
      count[k] += counts[b];
    }
    bool moved = false;
    for (int i = 0; i < n; ++i) {
      if (count[i] == 0) continue;
      const double mean = sum[i] / static_cast<double>(count[i]);
      moved |= mean != centre[i];
      centre[i] = mean;
    }
    if (!moved) break;
  }
  std::sort(centre, centre + n);
  for (int i = 0; i < n; ++i) lut[i] = static_cast<float>(centre[i]);
}

}  // namespace qevict
