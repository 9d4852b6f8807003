// Key norms: keys with small L2 norms attract attention and stay (A Simple and Effective L2
// Norm-Based Strategy for KV Cache Compression). Any prompt and any budget from one token on will
// do.
#include <cmath>

#include "policies/one_shot.h"
#include "policies/selection.h"

namespace qevict {
namespace {

struct NoOptions {
  void declare(Parameters&) {}
};

class KeyNorm final : public Selector {
 public:
  explicit KeyNorm(const NoOptions&) {}
  SelectorNeeds needs() const override { return {}; }
  int smallest_budget() const override { return 1; }
  void select(const PromptView& view, int n_kept, KeptTokens& kept) const override {
    select_per_head(knorm_scores(view), n_kept, kept);
  }
};

}  // namespace

HeadScores knorm_scores(const PromptView& view) {
  HeadScores scores(view.heads.size());
  for (std::size_t g = 0; g < scores.size(); ++g) {
    const PromptHead& head = view.heads[g];
    const float* k = head.k;
    for (std::size_t i = 0; i < head.positions.size(); ++i, k += view.head_dim) {
      float sum = 0.0F;
      for (int c = 0; c < view.head_dim; ++c) sum += k[c] * k[c];
      scores[g].push_back(-std::sqrt(sum));
    }
  }
  return scores;
}

PolicySpec knorm_policy() {
  return one_shot_policy<KeyNorm, NoOptions>(
      "knorm",
      "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression (arXiv 2406.11430)");
}

}  // namespace qevict
