// PyramidKV: SnapKV's scores with a budget that falls linearly from the first layer to the last.
//
// The line depends on all positions so far, so that it is the same in every layer; a layer that an
// earlier prompt left with fewer tokens keeps what it has. Where the line would leave the limits
// (little compression, short prompts, one layer) every layer has the same budget. A layer's budget
// is never below the observation window's tokens. What rounding adds to the sum of all budgets is
// taken off the first layers again.
#include <algorithm>
#include <cmath>

#include "policies/one_shot.h"
#include "policies/selection.h"

namespace qevict {
namespace {

enum class Flavour : std::uint8_t { Kvpress, Factory };

struct Options {
  Flavour flavour = Flavour::Kvpress;
  Observation what;
  int beta = 20;
  void declare(Parameters& p) {
    p.choice("flavour", flavour, {"kvpress", "factory"});
    what.sum_queries = flavour == Flavour::Factory;
    if (flavour == Flavour::Factory) what.obs_window = 32;
    declare_observation(p, what);
    p.integer("beta", beta, 1, 1000);
  }
};

int whole_number_budget(double kept, TokenPos n_tokens, int layer, int n_layers, int obs_window,
                        int beta) {
  return factory_pyramid_budget(static_cast<int>(kept), n_tokens, layer, n_layers, obs_window,
                                beta);
}

class PyramidKv final : public ObservingSelector {
 public:
  explicit PyramidKv(const Options& options)
      : ObservingSelector(options.what.obs_window), options_(options) {}

 private:
  void choose(const PromptView& view, int n_kept, KeptTokens& kept) const override {
    HeadScores scores = observe(view, options_.what);
    raise_window(view, scores);
    select_per_head(scores, budget(view, n_kept), kept);
  }
  int line(const PromptView& view, int n_kept, int layer) const {
    const auto budget_of =
        options_.flavour == Flavour::Factory ? whole_number_budget : pyramid_budget;
    return budget_of(n_kept, view.n_tokens, layer, view.n_layers, obs_window(), options_.beta);
  }
  int budget(const PromptView& view, int n_kept) const {
    // A single layer would get the top of the line, not its average.
    if (view.n_layers < 2) return n_kept;
    std::int64_t excess = -std::int64_t{n_kept} * view.n_layers;
    for (int i = 0; i < view.n_layers; ++i) excess += line(view, n_kept, i);
    const int wanted = line(view, n_kept, view.layer);
    if (excess <= 0) return wanted;
    const std::int64_t share = excess / view.n_layers + (view.layer < excess % view.n_layers);
    return wanted - static_cast<int>(share);
  }
  Options options_;
};

}  // namespace

int pyramid_budget(double kept, TokenPos n_tokens, int layer, int n_layers, int obs_window,
                   int beta) {
  const double base = (obs_window + kept) - obs_window;
  double min = base / beta;
  double max = base * 2.0 - min;
  if (max >= n_tokens - obs_window) {
    max = n_tokens - obs_window;
    min = base * 2.0 - max;
  }
  // nearbyint: halves go to the even number.
  if (!(n_tokens >= max && max >= min && min >= obs_window)) {
    return static_cast<int>(std::nearbyint(kept));
  }
  const double step = n_layers > 1 ? (max - min) / (n_layers - 1) : 0.0;
  return static_cast<int>(std::nearbyint(max - layer * step));
}

int factory_pyramid_budget(int n_kept, TokenPos n_tokens, int layer, int n_layers, int obs_window,
                           int beta) {
  const int base = n_kept - obs_window;
  if (n_tokens < n_kept) return n_tokens;
  if (n_tokens < 2 * base || n_layers < 2) return n_kept;
  int min = base / beta;
  int max = base * 2 - min;
  if (max >= n_tokens - obs_window) {
    max = n_tokens - obs_window;
    min = base * 2 - max;
  }
  return max - layer * ((max - min) / (n_layers - 1)) + obs_window;
}

PolicySpec pyramidkv_policy() {
  return one_shot_policy<PyramidKv, Options>("pyramidkv",
                                             "PyramidKV: Dynamic KV Cache Compression based on "
                                             "Pyramidal Information Funneling (arXiv 2406.02069)");
}

}  // namespace qevict
