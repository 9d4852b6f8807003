// Ranking of windows by the shares of attention that single query heads give them: A_h of the
// policy `qevict+` (docs/qevict-plus.md). Pure functions.
//
// For every window and query head two sums of attention probabilities over the window's tokens are
// kept, a HeadRecord: of the prompt's rows before its last 32, and of those 32 and all decode
// steps. The signals are
//   all    = both sums          recent = the second one
// and a window's share of a signal X is the largest, over the heads h, of X[h] divided by the sum
// of X[h] over all windows that have left the local zone, evicted ones included. The score is the
// window's part of all shares in `all` plus its part of all shares in `recent`. HeadRank leaves
// parts of that out, for ablations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace qevict {

inline constexpr int kHeadSignals = 2;  // all, recent
// Last rows of a prompt that count as recent: its question, as a rule.
inline constexpr int kRecentPromptRows = 32;

// [2][n_heads]: sums of the earlier rows, sums of the recent rows and steps.
struct HeadRecord {
  const float* first = nullptr;
  std::ptrdiff_t stride = 1;
  float operator[](int i) const { return first[i * stride]; }
};
inline std::size_t head_record_floats(int n_heads) { return static_cast<std::size_t>(2) * n_heads; }

// What evicted windows have left, [kHeadSignals][n_heads]: they get no more attention.
struct EvictedHeads {
  std::vector<double> total;  // sums over the windows
  // The same, each window only under the head that gave it its largest share when it was evicted.
  std::vector<double> peak;
  void reset(int n_heads);
  std::size_t bytes() const { return (total.capacity() + peak.capacity()) * sizeof(double); }
};

// One event's candidates.
struct HeadView {
  int n_heads = 0;
  std::span<const HeadRecord> windows;
  const EvictedHeads* evicted = nullptr;
  // [kHeadSignals][n_heads]: one over the sums of all windows, 0 where nothing was attended to.
  std::span<const double> inverse;
};

enum class HeadRank : std::uint8_t {
  Heads,   // A_h
  All,     // the shares in `all` alone
  Recent,  // the shares in `recent` alone
  Mean,    // sums over the heads in place of the largest share
};

// What HeadView::inverse is.
void head_inverses(std::span<const HeadRecord> windows, int n_heads, const EvictedHeads& evicted,
                   std::span<double> inverse);
// scores [windows.size()].
void score_head_shares(const HeadView& view, std::span<float> scores,
                       HeadRank rank = HeadRank::Heads);
// Adds a window that this event evicts.
void retire_window(HeadRecord window, int n_heads, std::span<const double> inverse,
                   EvictedHeads& evicted);

}  // namespace qevict
