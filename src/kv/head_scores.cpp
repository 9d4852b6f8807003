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

void score_head_means(const HeadView& view, std::span<float> scores) {
  const int n_heads = view.n_heads;
  double factor[kHeadSignals];
  for (int signal = 0; signal < kHeadSignals; ++signal) {
    double sum = 0.0;
    for (int h = 0; h < n_heads; ++h) {
      const double inverse = view.inverse[signal * n_heads + h];
      if (inverse > 0.0) sum += 1.0 / inverse;
    }
    factor[signal] = sum > 0.0 ? 1.0 / sum : 0.0;
  }
  for (std::size_t i = 0; i < scores.size(); ++i) {
    double score = 0.0;
    for (int signal = 0; signal < kHeadSignals; ++signal) {
      double sum = 0.0;
      for (int h = 0; h < n_heads; ++h) sum += signal_of(view.windows[i], n_heads, signal, h);
      score += factor[signal] * sum;
    }
    scores[i] = static_cast<float>(score);
  }
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
  if (rank == HeadRank::Mean) return score_head_means(view, scores);
  const int n_heads = view.n_heads;
  double factor[kHeadSignals];
  for (int signal = 0; signal < kHeadSignals; ++signal) {
    double sum = 0.0;
    for (int h = 0; h < n_heads; ++h) {
      sum += view.evicted->peak[signal * n_heads + h] * view.inverse[signal * n_heads + h];
    }
    for (const HeadRecord window : view.windows) {
      sum += largest_share(window, n_heads, signal, view.inverse).value;
    }
    factor[signal] = sum > 0.0 ? 1.0 / sum : 0.0;
  }
  if (rank == HeadRank::All) factor[kRecent] = 0.0;
  if (rank == HeadRank::Recent) factor[kAll] = 0.0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    double score = 0.0;
    for (int signal = 0; signal < kHeadSignals; ++signal) {
      score += factor[signal] * largest_share(view.windows[i], n_heads, signal, view.inverse).value;
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
