// SnapKV: the tokens that the last queries attend to, head by head.
//
// Probabilities of the last obs_window queries, averaged, pooled over neighbours so that clusters
// stay whole; the observation window itself stays. The engine never asks for fewer tokens than the
// window; asked anyway, the newest stay (the original keeps an arbitrary part of the window, or
// refuses prompts shorter than it). A prompt appended with fewer tokens than obs_window is observed
// by the queries that it has.
#include "policies/one_shot.h"
#include "policies/selection.h"

namespace qevict {
namespace {

enum class Flavour : std::uint8_t { Kvpress, Factory };

struct Options {
  Flavour flavour = Flavour::Kvpress;
  Observation what;
  void declare(Parameters& p) {
    p.choice("flavour", flavour, {"kvpress", "factory"});
    what.sum_queries = flavour == Flavour::Factory;
    if (flavour == Flavour::Factory) what.obs_window = 32;
    declare_observation(p, what);
  }
};

class SnapKv final : public ObservingSelector {
 public:
  explicit SnapKv(const Options& options)
      : ObservingSelector(options.what.obs_window), what_(options.what) {}

 private:
  void choose(const PromptView& view, int n_kept, KeptTokens& kept) const override {
    HeadScores scores = observe(view, what_);
    raise_window(view, scores);
    select_per_head(scores, n_kept, kept);
  }
  Observation what_;
};

}  // namespace

PolicySpec snapkv_policy() {
  return one_shot_policy<SnapKv, Options>(
      "snapkv", "SnapKV: LLM Knows What You Are Looking for Before Generation (arXiv 2404.14469)");
}

}  // namespace qevict
