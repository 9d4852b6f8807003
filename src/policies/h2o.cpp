// H2O: per KV head the tokens with the largest cumulative attention, and the most recent ones.
//
// Column sums over the prompt's rows and every decode step, mean over the head's query heads; a
// share of the budget goes to recent tokens. Evicts after every step. (The paper ranks per query
// head, which with grouped queries stores every KV head several times.)
#include "policies/parameters.h"
#include "policies/parts.h"

namespace qevict {
namespace {

struct Options {
  double recent = 0.5;  // share of the budget
  void declare(Parameters& p) { p.real("recent", recent, 0.0, 0.9); }
};

void configure(CacheConfig& config) {
  use_single_tokens(config);
  config.n_sink = 0;
  config.n_local = 0;
  config.local_share = read_options<Options>(config).recent;
}

}  // namespace

PolicySpec h2o_policy() {
  return {.name = "h2o",
          .paper = "H2O: Heavy-Hitter Oracle for Generative Inference (arXiv 2306.14048)",
          .parameters = options_text<Options>(),
          .schedule = Schedule::EveryWindow,
          .per_head = true,
          .check_parameters = check_options<Options>,
          .configure = configure,
          .make_scorer = [](const CacheConfig&) { return make_mass_scorer(1.0, 1.0); },
          .make_allocator = make_uniform_allocator};
}

}  // namespace qevict
