#include "eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace qevict {
namespace {

// A number below n. The standard's distributions differ between libraries, its engines do not; the
// bias is n / 2^32.
std::size_t draw(std::mt19937_64& random, std::size_t n) {
  return static_cast<std::size_t>(((random() >> 32) * static_cast<std::uint64_t>(n)) >> 32);
}

double mean_of_means(std::span<const std::vector<double>> groups) {
  double sum = 0.0;
  int n = 0;
  for (const std::vector<double>& group : groups) {
    if (group.empty()) continue;
    sum += mean(group);
    ++n;
  }
  return n > 0 ? sum / n : 0.0;
}

double resampled(std::span<const std::vector<double>> groups, std::mt19937_64& random) {
  double sum = 0.0;
  int n = 0;
  for (const std::vector<double>& group : groups) {
    if (group.empty()) continue;
    double total = 0.0;
    for (std::size_t i = 0; i < group.size(); ++i) total += group[draw(random, group.size())];
    sum += total / static_cast<double>(group.size());
    ++n;
  }
  return sum / n;
}

}  // namespace

double mean(std::span<const double> values) {
  if (values.empty()) return 0.0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double standard_error(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  if (n < 2.0) return 0.0;
  const double m = mean(values);
  double squares = 0.0;
  for (const double x : values) squares += (x - m) * (x - m);
  return std::sqrt(squares / (n - 1.0) / n);
}

double geometric_mean(std::span<const double> values) {
  if (values.empty()) return 0.0;
  double sum = 0.0;
  for (const double x : values) {
    if (x <= 0.0) return 0.0;
    sum += std::log(x);
  }
  return std::exp(sum / static_cast<double>(values.size()));
}

double sorted_quantile(std::span<const double> ascending, double q) {
  if (ascending.empty()) return 0.0;
  const double at = q * static_cast<double>(ascending.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, ascending.size() - 1);
  const double share = at - static_cast<double>(below);
  return ascending[below] + share * (ascending[above] - ascending[below]);
}

Difference bootstrap_group_mean(std::span<const std::vector<double>> groups, std::uint64_t seed,
                                int resamples) {
  Difference d;
  std::size_t n = 0;
  for (const std::vector<double>& group : groups) n += group.size();
  d.n = static_cast<int>(n);
  d.mean = d.low = d.high = mean_of_means(groups);
  if (n < 2 || resamples < 1) return d;
  std::mt19937_64 random(seed);
  std::vector<double> means(static_cast<std::size_t>(resamples));
  for (double& m : means) m = resampled(groups, random);
  std::ranges::sort(means);
  d.low = sorted_quantile(means, 0.025);
  d.high = sorted_quantile(means, 0.975);
  return d;
}

Difference bootstrap_mean(std::span<const double> differences, std::uint64_t seed, int resamples) {
  const std::vector<double> group(differences.begin(), differences.end());
  return bootstrap_group_mean(std::span(&group, 1), seed, resamples);
}

}  // namespace qevict
