#include "kv/head_scores.h"

#include "base/check.h"

namespace qevict {
namespace {

constexpr int kAll = 0, kRecent = 1;

// A signal of one head.
double signal_of(HeadRecord window, int n_heads, int signal, int head) {
  const double recent = window[n_heads + head];
  return signal == kAll ? window[head] + recent : recent;
}

struct Share {
  double value = 0.0;
  int head = 0;
};

Share largest_share(HeadRecord window, int n_heads, int signal, std::span<const double> inverse) {
  Share best;
  for (int h = 0; h < n_heads; ++h) {
    const double share = signal_of(window, n_heads, signal, h) * inverse[signal * n_heads + h];
    if (share > best.value) best = {share, h};
  }
  return best;
}

// What a window has of a signal, before all of it is made 1.
double part_of(const HeadView& view, HeadRecord window, int signal, HeadRank rank) {
  if (rank != HeadRank::Mean) {
    return largest_share(window, view.n_heads, signal, view.inverse).value;
  }
  double sum = 0.0;
  for (int h = 0; h < view.n_heads; ++h) sum += signal_of(window, view.n_heads, signal, h);
  return sum;
}

// The same of all evicted windows together.
double evicted_part(const HeadView& view, int signal, HeadRank rank) {
  double sum = 0.0;
  for (int i = signal * view.n_heads; i < (signal + 1) * view.n_heads; ++i) {
    sum +=
        rank == HeadRank::Mean ? view.evicted->total[i] : view.evicted->peak[i] * view.inverse[i];
  }
  return sum;
}

}  // namespace

void EvictedHeads::reset(int n_heads) {
  total.assign(static_cast<std::size_t>(kHeadSignals) * n_heads, 0.0);
  peak.assign(total.size(), 0.0);
}

void head_inverses(std::span<const HeadRecord> windows, int n_heads, const EvictedHeads& evicted,
                   std::span<double> inverse) {
  const std::size_t n = static_cast<std::size_t>(kHeadSignals) * n_heads;
  QE_CHECK(evicted.total.size() == n && inverse.size() == n);
  for (int signal = 0; signal < kHeadSignals; ++signal) {
    for (int h = 0; h < n_heads; ++h) {
      double sum = evicted.total[signal * n_heads + h];
      for (const HeadRecord window : windows) sum += signal_of(window, n_heads, signal, h);
      inverse[signal * n_heads + h] = sum > 0.0 ? 1.0 / sum : 0.0;
    }
  }
}

void score_head_shares(const HeadView& view, std::span<float> scores, HeadRank rank) {
  QE_CHECK(scores.size() == view.windows.size());
  double factor[kHeadSignals];
  for (int signal = 0; signal < kHeadSignals; ++signal) {
    double sum = evicted_part(view, signal, rank);
    for (const HeadRecord window : view.windows) sum += part_of(view, window, signal, rank);
    factor[signal] = sum > 0.0 ? 1.0 / sum : 0.0;
  }
  if (rank == HeadRank::All) factor[kRecent] = 0.0;
  if (rank == HeadRank::Recent) factor[kAll] = 0.0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    double score = 0.0;
    for (int signal = 0; signal < kHeadSignals; ++signal) {
      score += factor[signal] * part_of(view, view.windows[i], signal, rank);
    }
    scores[i] = static_cast<float>(score);
  }
}

void retire_window(HeadRecord window, int n_heads, std::span<const double> inverse,
                   EvictedHeads& evicted) {
  for (int signal = 0; signal < kHeadSignals; ++signal) {
    for (int h = 0; h < n_heads; ++h) {
      evicted.total[signal * n_heads + h] += signal_of(window, n_heads, signal, h);
    }
    const int head = largest_share(window, n_heads, signal, inverse).head;
    evicted.peak[signal * n_heads + head] += signal_of(window, n_heads, signal, head);
  }
}

}  // namespace qevict
