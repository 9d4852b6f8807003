// What a compressed cache misses of the attention that the full cache pays on the same tokens.
//
//   prompt | step 1 .. Omega | step .. 2 Omega | ...
//        event 0           event 1           event 2       routing decides what stays accessible
//                 [ the next H steps after event 1 )       where attention really goes
//
// Pure functions on plain values. A value that is not defined (no mass, nothing to count) is NaN.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/types.h"

namespace qevict {

// Where a position was after a routing event. Sinks are held, but left out of shares.
enum class Place : std::uint8_t { Sink, Local, Full, Quantized, Evicted };

// Softmax of the full cache in decode steps 1 .. n_steps, of one layer: a head's or the heads'
// mean. [n_steps][n_positions]; 0 where a position did not exist yet.
struct StepAttention {
  const float* data = nullptr;
  int n_steps = 0;
  int n_positions = 0;
  std::span<const float> step(int number) const {  // 1-based
    return {data + static_cast<std::size_t>(number - 1) * n_positions,
            static_cast<std::size_t>(n_positions)};
  }
};

struct PlaceMass {
  double sink = 0.0, local = 0.0, full = 0.0, quantized = 0.0, evicted = 0.0;
  double unsunk() const { return local + full + quantized + evicted; }
  PlaceMass& operator+=(const PlaceMass& o);
};

// Sums of mass[i] by places[i]; mass has at least as many values.
PlaceMass mass_by_place(std::span<const float> mass, std::span<const Place> places);
PlaceMass mass_by_place(std::span<const double> mass, std::span<const Place> places);

inline constexpr int kFutureHorizon = 32;

// Mass of steps event_step + 1 .. event_step + horizon on the positions that `places` covers;
// the run's end cuts it short.
PlaceMass future_mass(const StepAttention& attention, int event_step, int horizon,
                      std::span<const Place> places);
bool has_full_horizon(const StepAttention& attention, int event_step, int horizon);

enum class Sinks : std::uint8_t { Excluded, Included };
// Future missed mass: what goes to evicted positions, as a share of all.
double missed_share(const PlaceMass& mass, Sinks sinks = Sinks::Excluded);
// The same if the Quantized tier were out of reach too.
double missed_share_without_quantized(const PlaceMass& mass, Sinks sinks = Sinks::Excluded);

// Jaccard distance of two sets of windows, each ascending; 0 of two empty ones.
double selection_churn(std::span<const WindowId> a, std::span<const WindowId> b);

// The same windows' mass under a policy's own attention and under the full cache's.
struct MassAgreement {
  double cosine = 0.0;   // QSA
  double ratio = 0.0;    // RQ: policy / full
  double overlap = 0.0;  // min(policy, full) / full
};
MassAgreement mass_agreement(std::span<const double> policy, std::span<const double> full);

// Spearman's rank correlation, equal values sharing their mean rank.
double rank_correlation(std::span<const double> a, std::span<const double> b);

enum class WindowState : std::int8_t { Unranked = -1, Outside = 0, Full = 1 };

// Global loss-in-revival: of the windows' spells outside Full, how many end with a return.
struct Revivals {
  std::int64_t eligible = 0;  // spells of at least m events, those that never end included
  std::int64_t rescued = 0;   // of these: Full follows
  std::vector<int> times;     // of these: length - m + 1 events
  double rate() const;
  double median_time() const;
  Revivals& operator+=(const Revivals& o);
};
// states [n_events][n_windows] of one layer. A spell is a maximal run of events Outside; the one
// before a first selection counts.
Revivals count_revivals(std::span<const WindowState> states, int n_windows, int m);

// Of the values that are defined; NaN when none is.
double defined_mean(std::span<const double> values);
double defined_min(std::span<const double> values);

}  // namespace qevict
