#include <algorithm>
#include <vector>

#include "llama.h"
#include "model/backend.h"
#include "model/tokenizer.h"

namespace qevict {
namespace {

class GreedySampler final : public Sampler {
 public:
  TokenId sample(std::span<const float> logits) override {
    // max_element returns the first of equals. A NaN never wins.
    const auto best = std::ranges::max_element(
        logits, [](float a, float b) { return (a != a && b == b) || a < b; });
    return static_cast<TokenId>(best - logits.begin());
  }
};

struct ChainDeleter {
  void operator()(llama_sampler* chain) const { llama_sampler_free(chain); }
};

class ChainSampler final : public Sampler {
 public:
  ChainSampler(const SamplerOptions& options, int n_vocab)
      : chain_(llama_sampler_chain_init(llama_sampler_chain_default_params())),
        candidates_(static_cast<std::size_t>(n_vocab)) {
    llama_sampler* chain = chain_.get();
    if (options.top_k > 0) llama_sampler_chain_add(chain, llama_sampler_init_top_k(options.top_k));
    llama_sampler_chain_add(chain, llama_sampler_init_top_p(options.top_p, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_min_p(options.min_p, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_temp(options.temperature));
    llama_sampler_chain_add(chain, llama_sampler_init_dist(options.seed));
  }

  TokenId sample(std::span<const float> logits) override {
    const std::size_t n = std::min(logits.size(), candidates_.size());
    for (std::size_t i = 0; i < n; ++i) {
      candidates_[i] = {static_cast<TokenId>(i), logits[i], 0.0F};
    }
    llama_token_data_array array{candidates_.data(), n, -1, false};
    llama_sampler_apply(chain_.get(), &array);
    const TokenId token = array.data[array.selected >= 0 ? array.selected : 0].id;
    llama_sampler_accept(chain_.get(), token);
    return token;
  }

 private:
  std::unique_ptr<llama_sampler, ChainDeleter> chain_;
  std::vector<llama_token_data> candidates_;
};

}  // namespace

std::unique_ptr<Sampler> Sampler::create(const SamplerOptions& options, int n_vocab) {
  init_backend();
  // So small a divisor would overflow the logits; the limit is the most likely token anyway.
  if (!(options.temperature > 1e-6F)) return std::make_unique<GreedySampler>();
  return std::make_unique<ChainSampler>(options, n_vocab);
}

}  // namespace qevict
