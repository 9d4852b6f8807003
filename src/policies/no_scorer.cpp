#include <algorithm>

#include "policies/parts.h"

namespace qevict {
namespace {

class NoScorer final : public Scorer {
 public:
  Needs needs() const override { return {}; }
  void score(const LayerView&, std::span<float> scores) const override {
    std::ranges::fill(scores, 0.0F);
  }
};

}  // namespace

std::unique_ptr<Scorer> make_no_scorer(const CacheConfig&) { return std::make_unique<NoScorer>(); }

}  // namespace qevict
