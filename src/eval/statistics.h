// The quantities that tables of scores are made of. Pure: the same values give the same results on
// every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace qevict {

double mean(std::span<const double> values);            // 0 when empty
double standard_error(std::span<const double> values);  // of the mean; 0 below two values
// exp of the mean logarithm; 0 when a value is 0 or there is none.
double geometric_mean(std::span<const double> values);
// The q-quantile of ascending values by linear interpolation; 0 when empty.
double sorted_quantile(std::span<const double> ascending, double q);

// A mean difference with the 95 % interval of its bootstrap.
struct Difference {
  double mean = 0.0;
  double low = 0.0, high = 0.0;
  int n = 0;
  // The interval lies on one side of zero.
  bool clear() const { return low > 0.0 || high < 0.0; }
};

inline constexpr int kBootstrapResamples = 10000;
inline constexpr std::uint64_t kBootstrapSeed = 1;

// Percentile bootstrap of the mean of paired differences: they are drawn with replacement,
// `resamples` times. Fewer than two differences leave the interval [mean, mean].
Difference bootstrap_mean(std::span<const double> differences, std::uint64_t seed = kBootstrapSeed,
                          int resamples = kBootstrapResamples);

// The same for the mean over groups (tasks) of each group's mean, as averages over tasks are made;
// differences are drawn within their group. Empty groups do not count.
Difference bootstrap_group_mean(std::span<const std::vector<double>> groups,
                                std::uint64_t seed = kBootstrapSeed,
                                int resamples = kBootstrapResamples);

}  // namespace qevict
