#include "eval/diagnostics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "engine/run_report.h"

namespace qevict {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

double ratio(double part, double whole) { return whole > 0.0 ? part / whole : kUndefined; }

double& at(PlaceMass& mass, Place place) {
  switch (place) {
    case Place::Sink:
      return mass.sink;
    case Place::Local:
      return mass.local;
    case Place::Full:
      return mass.full;
    case Place::Quantized:
      return mass.quantized;
    case Place::Evicted:
      break;
  }
  return mass.evicted;
}

template <typename T>
PlaceMass sum_by_place(std::span<const T> mass, std::span<const Place> places) {
  QE_CHECK(mass.size() >= places.size());
  PlaceMass sums;
  for (std::size_t i = 0; i < places.size(); ++i) at(sums, places[i]) += mass[i];
  return sums;
}

double share(double part, const PlaceMass& mass, Sinks sinks) {
  return ratio(part, mass.unsunk() + (sinks == Sinks::Included ? mass.sink : 0.0));
}

// From 0; equal values share the mean of theirs.
std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t end = i + 1;
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    for (std::size_t j = i; j < end; ++j) {
      ranks[order[j]] = (static_cast<double>(i) + static_cast<double>(end - 1)) / 2.0;
    }
    i = end;
  }
  return ranks;
}

}  // namespace

PlaceMass& PlaceMass::operator+=(const PlaceMass& o) {
  sink += o.sink, local += o.local, full += o.full, quantized += o.quantized, evicted += o.evicted;
  return *this;
}

PlaceMass mass_by_place(std::span<const float> mass, std::span<const Place> places) {
  return sum_by_place(mass, places);
}

PlaceMass mass_by_place(std::span<const double> mass, std::span<const Place> places) {
  return sum_by_place(mass, places);
}

PlaceMass future_mass(const StepAttention& attention, int event_step, int horizon,
                      std::span<const Place> places) {
  std::vector<double> sums(places.size());
  const int last = std::min(event_step + horizon, attention.n_steps);
  for (int step = event_step + 1; step <= last; ++step) {
    const float* row = attention.step(step).data();
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += row[i];
  }
  return mass_by_place(sums, places);
}

bool has_full_horizon(const StepAttention& attention, int event_step, int horizon) {
  return event_step + horizon <= attention.n_steps;
}

double missed_share(const PlaceMass& mass, Sinks sinks) { return share(mass.evicted, mass, sinks); }

double missed_share_without_quantized(const PlaceMass& mass, Sinks sinks) {
  return share(mass.evicted + mass.quantized, mass, sinks);
}

double selection_churn(std::span<const WindowId> a, std::span<const WindowId> b) {
  std::size_t both = 0, i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    both += a[i] == b[j] ? 1 : 0;
    const bool step_a = a[i] <= b[j];
    const bool step_b = b[j] <= a[i];
    i += step_a ? 1 : 0;
    j += step_b ? 1 : 0;
  }
  const std::size_t either = a.size() + b.size() - both;
  return either == 0 ? 0.0 : 1.0 - static_cast<double>(both) / static_cast<double>(either);
}

MassAgreement mass_agreement(std::span<const double> policy, std::span<const double> full) {
  QE_CHECK(policy.size() == full.size());
  double dot = 0.0, policy_square = 0.0, full_square = 0.0;
  double policy_sum = 0.0, full_sum = 0.0, common = 0.0;
  for (std::size_t i = 0; i < policy.size(); ++i) {
    dot += policy[i] * full[i];
    policy_square += policy[i] * policy[i];
    full_square += full[i] * full[i];
    policy_sum += policy[i];
    full_sum += full[i];
    common += std::min(policy[i], full[i]);
  }
  return {ratio(dot, std::sqrt(policy_square) * std::sqrt(full_square)),
          ratio(policy_sum, full_sum), ratio(common, full_sum)};
}

double rank_correlation(std::span<const double> a, std::span<const double> b) {
  QE_CHECK(a.size() == b.size());
  const std::vector<double> x = ranks_of(a), y = ranks_of(b);
  const double mean = (static_cast<double>(a.size()) - 1.0) / 2.0;
  double dot = 0.0, x_square = 0.0, y_square = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    dot += (x[i] - mean) * (y[i] - mean);
    x_square += (x[i] - mean) * (x[i] - mean);
    y_square += (y[i] - mean) * (y[i] - mean);
  }
  return ratio(dot, std::sqrt(x_square) * std::sqrt(y_square));
}

double Revivals::rate() const {
  return ratio(static_cast<double>(rescued), static_cast<double>(eligible));
}

double Revivals::median_time() const {
  return times.empty() ? kUndefined : quantile({times.begin(), times.end()}, 0.5);
}

Revivals& Revivals::operator+=(const Revivals& o) {
  eligible += o.eligible;
  rescued += o.rescued;
  times.insert(times.end(), o.times.begin(), o.times.end());
  return *this;
}

Revivals count_revivals(std::span<const WindowState> states, int n_windows, int m) {
  Revivals count;
  if (n_windows == 0) return count;
  const std::size_t n_events = states.size() / n_windows;
  for (int w = 0; w < n_windows; ++w) {
    int length = 0;
    const auto end_spell = [&](bool rescued) {
      if (length >= m) {
        ++count.eligible;
        if (rescued) {
          ++count.rescued;
          count.times.push_back(length - m + 1);
        }
      }
      length = 0;
    };
    for (std::size_t e = 0; e < n_events; ++e) {
      switch (states[e * n_windows + w]) {
        case WindowState::Outside:
          ++length;
          break;
        case WindowState::Full:
          end_spell(true);
          break;
        case WindowState::Unranked:
          end_spell(false);
          break;
      }
    }
    end_spell(false);
  }
  return count;
}

double defined_mean(std::span<const double> values) {
  double sum = 0.0;
  int n = 0;
  for (const double x : values) {
    if (std::isnan(x)) continue;
    sum += x;
    ++n;
  }
  return n == 0 ? kUndefined : sum / n;
}

double defined_min(std::span<const double> values) {
  double smallest = kUndefined;
  for (const double x : values) smallest = std::fmin(smallest, x);
  return smallest;
}

}  // namespace qevict
