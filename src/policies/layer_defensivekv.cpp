// Layer-DefensiveKV: DefensiveKV's scores compared over all layers.
//
// The n_kept best a head and layer are sought among all layers' scores together: that gives each
// layer its share, and each layer then keeps the best of its heads. Scores are not normalised
// between layers, as in the authors' code, so a layer whose largest score is low may lose even its
// observation window. Layers stay uncompressed until the last one has its scores.
#include "policies/one_shot.h"
#include "policies/selection.h"

namespace qevict {
namespace {

struct Options {
  int obs_window = 32;
  int kernel = 5;
  void declare(Parameters& p) {
    p.integer("obs_window", obs_window, 1, 4096);
    p.odd("kernel", kernel, 1, 255);
  }
};

class LayerDefensiveKv final : public ObservingSelector {
 public:
  explicit LayerDefensiveKv(const Options& options)
      : ObservingSelector(options.obs_window), options_(options) {}
  SelectorNeeds needs() const override {
    return {.last_queries = obs_window(), .value_norms = true};
  }
  bool over_layers() const override { return true; }
  void score(const PromptView& view, int n_kept, HeadScores& scores) const override {
    const DefensiveParts parts = defensive_parts(view, options_.obs_window, options_.kernel);
    scores = defensive_scores(view, parts, options_.obs_window, n_kept, nullptr);
  }
  void select_over_layers(std::span<const HeadScores> scores, int n_kept,
                          std::span<KeptTokens> kept) const override {
    std::int64_t total = 0;
    for (const HeadScores& layer : scores) total += n_kept * std::ssize(layer);
    const std::vector<std::int64_t> shares = layer_shares(scores, total);
    for (std::size_t i = 0; i < scores.size(); ++i)
      select_over_heads(scores[i], shares[i], kept[i]);
  }

 private:
  // One layer alone: DefensiveKV.
  void choose(const PromptView& view, int n_kept, KeptTokens& kept) const override {
    HeadScores scores;
    score(view, n_kept, scores);
    select_over_heads(scores, std::int64_t{n_kept} * view.n_kv_heads(), kept);
  }
  Options options_;
};

}  // namespace

std::vector<std::int64_t> layer_shares(std::span<const HeadScores> layers, std::int64_t total) {
  HeadScores flat(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const std::vector<float>& head : layers[i]) {
      flat[i].insert(flat[i].end(), head.begin(), head.end());
    }
  }
  const std::vector<int> counts = counts_over_heads(flat, total);
  return {counts.begin(), counts.end()};
}

PolicySpec layer_defensivekv_policy() {
  return one_shot_policy<LayerDefensiveKv, Options>(
      "layer_defensivekv", "Layer-DefensiveKV: budgets over layers, too (arXiv 2510.13334)");
}

}  // namespace qevict
