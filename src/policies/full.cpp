// The uncompressed cache: windows that leave the local zone go to Full and stay there.
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

PolicySpec full_policy() {
  return {.name = "full",
          .paper = "the whole cache in fp16, no compression",
          .parameters = "none (kv_budget is ignored)",
          .schedule = Schedule::Never,
          .make_scorer = [](const CacheConfig&) { return std::make_unique<NoScorer>(); },
          .make_allocator = make_uniform_allocator};
}

}  // namespace qevict
