// StreamingLLM: the first n_sink tokens and the most recent others.
//
// As kvpress has it, with n_sink 4 and the tokens' own positions; the paper renumbers positions
// inside its cache, KVCache-Factory keeps the first tokens and a short recent window.
#include "policies/parameters.h"
#include "policies/parts.h"

namespace qevict {
namespace {

struct Options {
  int n_sink = 4;
  void declare(Parameters& p) { p.integer("n_sink", n_sink, 0, 1 << 20); }
};

class Newest final : public Scorer {
 public:
  Needs needs() const override { return {}; }
  void score(const LayerView& view, std::span<float> scores) const override {
    // Whole numbers up to 2^24 are exact: no context is that long.
    for (std::size_t i = 0; i < scores.size(); ++i) {
      scores[i] = static_cast<float>(view.windows[i].id);
    }
  }
};

void configure(CacheConfig& config) {
  use_single_tokens(config);
  config.n_sink = read_options<Options>(config).n_sink;
  config.n_local = 0;  // a token's rank is its age: nothing needs protection
  config.local_share = 0.0;
}

}  // namespace

PolicySpec streaming_llm_policy() {
  return {.name = "streaming_llm",
          .paper = "Efficient Streaming Language Models with Attention Sinks (arXiv 2309.17453)",
          .parameters = options_text<Options>(),
          .schedule = Schedule::EveryWindow,
          .check_parameters = check_options<Options>,
          .configure = configure,
          .make_scorer = [](const CacheConfig&) { return std::make_unique<Newest>(); },
          .make_allocator = make_uniform_allocator};
}

}  // namespace qevict
