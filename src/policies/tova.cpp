// TOVA: tokens are ranked by the attention of the last query alone, mean over all heads.
//
// After the prompt the lowest go until the budget is met; then at each decode step the lowest one.
// The newest token is never ranked (kvpress pins it, too). All heads keep the same tokens.
#include "policies/parts.h"

namespace qevict {
namespace {

void configure(CacheConfig& config) {
  use_single_tokens(config);
  config.n_sink = 0;
  config.n_local = 1;
  config.local_share = 0.0;
}

}  // namespace

PolicySpec tova_policy() {
  return {.name = "tova",
          .paper = "Transformers are Multi-State RNNs (arXiv 2401.06104)",
          .parameters = "none",
          .schedule = Schedule::EveryWindow,
          .configure = configure,
          .make_scorer = [](const CacheConfig&) { return make_mass_scorer(1.0, 0.0, 1); },
          .make_allocator = make_uniform_allocator};
}

}  // namespace qevict
