// CriticalAdaKV: AdaKV's budgets for the heads, CriticalKV's choice inside each.
#include <algorithm>

#include "policies/one_shot.h"
#include "policies/selection.h"

namespace qevict {
namespace {

struct Options {
  int obs_window = 64;
  int kernel = 5;
  double alpha = 0.2;
  double first_share = 0.5;
  double epsilon = 1e-4;
  void declare(Parameters& p) {
    p.integer("obs_window", obs_window, 1, 4096);
    p.odd("kernel", kernel, 1, 255);
    p.real("alpha", alpha, 0.0, 1.0);
    p.real("first_share", first_share, 0.0, 1.0);
    p.real("epsilon", epsilon, 0.0, 1.0);
  }
};

class CriticalAdaKv final : public ObservingSelector {
 public:
  explicit CriticalAdaKv(const Options& options)
      : ObservingSelector(options.obs_window), options_(options) {}
  SelectorNeeds needs() const override {
    return {.last_queries = obs_window(), .value_norms = true};
  }

 private:
  void choose(const PromptView& view, int n_kept, KeptTokens& kept) const override {
    critical_adakv_select(snapkv_scores(view, obs_window(), options_.kernel), value_weights(view),
                          n_kept, static_cast<int>(n_kept * options_.alpha), options_.first_share,
                          options_.epsilon, kept);
  }
  Options options_;
};

}  // namespace

void critical_adakv_select(const HeadScores& base, const HeadScores& weights, int n_kept,
                           int n_safe, double first_share, double epsilon, KeptTokens& kept) {
  HeadScores safe = base;
  for (std::vector<float>& head : safe) pin_best(head, n_safe);
  const auto total = static_cast<std::int64_t>(base.size()) * n_kept;
  const std::vector<int> budgets = counts_over_heads(safe, total);
  for (std::size_t g = 0; g < base.size(); ++g) {
    const int n_first = std::max(n_safe, static_cast<int>(budgets[g] * first_share));
    kept[g] = critical_best(base[g], weights[g], budgets[g], n_first, epsilon);
  }
}

PolicySpec criticaladakv_policy() {
  return one_shot_policy<CriticalAdaKv, Options>(
      "criticaladakv", "CriticalKV with Ada-KV's budgets (arXiv 2502.03805)");
}

}  // namespace qevict
