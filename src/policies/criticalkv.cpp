// CriticalKV: SnapKV's scores weighted by what a token can contribute, || v W_o ||_1.
//
// The best first_share of the budget is chosen by SnapKV's score alone, the observation window
// first; the others by (score + epsilon) * weight.
#include <algorithm>
#include <limits>

#include "policies/one_shot.h"
#include "policies/selection.h"

namespace qevict {
namespace {

struct Options {
  int obs_window = 64;
  int kernel = 5;
  double first_share = 0.5;
  double epsilon = 1e-4;
  void declare(Parameters& p) {
    p.integer("obs_window", obs_window, 1, 4096);
    p.odd("kernel", kernel, 1, 255);
    p.real("first_share", first_share, 0.0, 1.0);
    p.real("epsilon", epsilon, 0.0, 1.0);
  }
};

class CriticalKv final : public ObservingSelector {
 public:
  explicit CriticalKv(const Options& options)
      : ObservingSelector(options.obs_window), options_(options) {}
  SelectorNeeds needs() const override {
    return {.last_queries = obs_window(), .value_norms = true};
  }

 private:
  void choose(const PromptView& view, int n_kept, KeptTokens& kept) const override {
    const HeadScores base = snapkv_scores(view, obs_window(), options_.kernel);
    const HeadScores weights = value_weights(view);
    const int n_first = static_cast<int>(n_kept * options_.first_share);
    for (std::size_t g = 0; g < base.size(); ++g) {
      kept[g] = critical_best(base[g], weights[g], n_kept, n_first, options_.epsilon);
    }
  }
  Options options_;
};

}  // namespace

HeadScores value_weights(const PromptView& view) {
  HeadScores weights(view.heads.size());
  const int group = view.group_size();
  for (int g = 0; g < view.n_kv_heads(); ++g) {
    weights[g].resize(view.heads[g].positions.size(), 0.0F);
    for (int h = g * group; h < (g + 1) * group; ++h) {
      for (std::size_t i = 0; i < weights[g].size(); ++i) weights[g][i] += view.value_norms[h][i];
    }
    for (float& weight : weights[g]) weight /= static_cast<float>(group);
  }
  return weights;
}

std::vector<int> critical_best(std::span<const float> base, std::span<const float> weights,
                               int n_kept, int n_first, double epsilon) {
  std::vector<float> scores(base.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] = (base[i] + static_cast<float>(epsilon)) * weights[i];
  }
  for (const int i : best(base, n_first)) scores[i] = std::numeric_limits<float>::max();
  return best(scores, n_kept);
}

PolicySpec criticalkv_policy() {
  return one_shot_policy<CriticalKv, Options>(
      "criticalkv",
      "CriticalKV: Identify Critical KV Cache in LLM Inference from an Output Perturbation "
      "Perspective (arXiv 2502.03805)");
}

}  // namespace qevict
