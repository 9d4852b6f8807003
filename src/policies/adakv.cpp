// AdaKV: SnapKV's scores, one budget for all heads of a layer.
//
//   kvpress    the alpha * n_kept best of each head are safe, the best of all heads fill the rest.
//              Safe tokens are taken from scores in which the observation window already stands
//              above everything: up to obs_window they only protect the window.
//   official   max-pooled scores, weighted by how concentrated a head is, decide how many tokens
//              each head keeps; a share alpha is the same for all. Rounding may leave a few tokens
//              unused; what it adds, as the original does not, is taken off the largest head.
//   efficient  DefensiveKV's variant: the floor is applied before the window is added, so it always
//              protects tokens of the past (no more than there are).
//
// A head that an earlier prompt left with fewer tokens competes with what it has.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "policies/one_shot.h"
#include "policies/selection.h"

namespace qevict {
namespace {

enum class Flavour : std::uint8_t { Kvpress, Official, Efficient };

struct Options {
  Flavour flavour = Flavour::Kvpress;
  Observation what;
  double alpha = 0.2;
  bool normalize = true;
  void declare(Parameters& p) {
    p.choice("flavour", flavour, {"kvpress", "official", "efficient"});
    if (flavour != Flavour::Kvpress) what.obs_window = 32;
    if (flavour == Flavour::Official) {
      what.kernel = 7;
      what.pooling = Pooling::Max;
    }
    declare_observation(p, what);
    p.real("alpha", alpha, 0.0, 1.0);
    p.flag("normalize", normalize);
  }
};

class AdaKv final : public ObservingSelector {
 public:
  explicit AdaKv(const Options& options)
      : ObservingSelector(options.what.obs_window), options_(options) {}

 private:
  void choose(const PromptView& view, int n_kept, KeptTokens& kept) const override {
    const int n_safe = static_cast<int>(n_kept * options_.alpha);
    if (options_.flavour == Flavour::Official) return choose_official(view, n_kept, kept);
    HeadScores scores = observe(view, options_.what);
    if (options_.flavour == Flavour::Kvpress) {
      raise_window(view, scores);
      adakv_select(std::move(scores), n_kept, n_safe, kept);
    } else {
      pin_floor(view, n_safe, scores);
      select_over_heads(scores, std::int64_t{n_kept} * view.n_kv_heads(), kept);
    }
  }

  void choose_official(const PromptView& view, int n_kept, KeptTokens& kept) const {
    HeadScores scores = observe(view, options_.what);
    const int rows = std::min(obs_window(), view.n_last);
    const std::vector<int> counts =
        adakv_official_counts(scores, n_kept - rows, options_.alpha, options_.normalize);
    append_window(view, std::numeric_limits<float>::max(), scores);
    for (std::size_t g = 0; g < scores.size(); ++g) kept[g] = best(scores[g], counts[g] + rows);
  }
  Options options_;
};

}  // namespace

void adakv_select(HeadScores scores, int n_kept, int n_safe, KeptTokens& kept) {
  const auto n_heads = static_cast<std::int64_t>(scores.size());
  for (std::vector<float>& head : scores) pin_best(head, n_safe);
  select_over_heads(scores, n_kept * n_heads, kept);
}

std::vector<int> adakv_official_counts(const HeadScores& scores, int base, double floor_alpha,
                                       bool normalize) {
  HeadScores weighted = scores;
  for (std::vector<float>& head : weighted) {
    if (!normalize) break;
    std::vector<float> sorted = head;
    std::ranges::sort(sorted, std::greater<>());
    const auto middle = sorted.begin() + std::min<std::ptrdiff_t>(base, std::ssize(sorted));
    const double top = std::accumulate(sorted.begin(), middle, 0.0);
    const double all = std::accumulate(middle, sorted.end(), top);
    const auto weight = static_cast<float>(all > 0.0 ? top / all : 0.0);
    for (float& score : head) score *= weight;
  }
  const auto total = static_cast<std::int64_t>(scores.size()) * base;
  std::vector<int> counts = counts_over_heads(weighted, total);
  const auto free_share = static_cast<float>(1.0 - floor_alpha);
  const auto floor = static_cast<float>(static_cast<int>(base * floor_alpha));
  for (int& count : counts) {
    count = static_cast<int>(std::nearbyint(static_cast<float>(count) * free_share + floor));
  }
  auto excess = std::accumulate(counts.begin(), counts.end(), -total);
  for (; excess > 0; --excess) --*std::ranges::max_element(counts);
  return counts;
}

void pin_floor(const PromptView& view, int n_floor, HeadScores& scores) {
  for (std::vector<float>& head : scores) pin_best(head, n_floor);
  append_window(view, std::numeric_limits<float>::max(), scores);
}

PolicySpec adakv_policy() {
  return one_shot_policy<AdaKv, Options>(
      "adakv",
      "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation (arXiv 2407.11550)");
}

}  // namespace qevict
