// QEvict: windows ranked by cumulative attention mass (or another ranker), three tiers.
#include <cstddef>

#include "policies/parts.h"

namespace qevict {
namespace {

// The attention sums, raises and decays the mass as the needs say: the score is the sum itself.
class MassScorer final : public Scorer {
 public:
  explicit MassScorer(const Needs& needs) : needs_(needs) {}
  Needs needs() const override { return needs_; }
  void score(const LayerView& view, std::span<float> scores) const override {
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = view.windows[i].mass;
  }

 private:
  Needs needs_;
};

// Low key norms attract attention: they are kept.
class KeyNormScorer final : public Scorer {
 public:
  Needs needs() const override { return {.key_norm = true}; }
  void score(const LayerView& view, std::span<float> scores) const override {
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = -view.windows[i].key_norm;
  }
};

}  // namespace

std::unique_ptr<Scorer> make_mass_scorer(double power, double decay, int prompt_rows) {
  return std::make_unique<MassScorer>(
      Needs{.mass = true, .mass_power = power, .mass_decay = decay, .prompt_rows = prompt_rows});
}

std::unique_ptr<Scorer> make_ranker(const CacheConfig& config) {
  switch (config.ranker.kind) {
    case Ranker::Kind::Mass:
      return make_mass_scorer(1.0, 1.0);
    case Ranker::Kind::Decay:
      return make_mass_scorer(1.0, config.ranker.parameter);
    case Ranker::Kind::PNorm:
      return make_mass_scorer(config.ranker.parameter, 1.0);
    case Ranker::Kind::KeyL2:
      return std::make_unique<KeyNormScorer>();
  }
  return nullptr;
}

void use_single_tokens(CacheConfig& config) {
  config.window = 1;
  config.quant_share = 0.0;
}

PolicySpec qevict_policy() {
  return {.name = "qevict",
          .paper = "QEvict: Recoverable Quantized KV Eviction (arXiv 2608.05326)",
          .parameters =
              "kv_budget=0.2 n_sink=5 n_local=32 window=8 quant_share=0.7 quant_bits=2 "
              "ranker=mass|decay:G|pnorm:P|key_l2 promotion=true local_rule=floor|ceil "
              "strict_budget=false quantized_accessible=true",
          .schedule = Schedule::EveryWindow,
          .make_scorer = make_ranker,
          .make_allocator = make_uniform_allocator};
}

}  // namespace qevict
