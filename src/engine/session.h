// One sequence: its cache, its attention, the generate loop.
#pragma once

#include <memory>
#include <vector>

#include "attention/tiered_attention.h"
#include "engine/engine.h"

namespace qevict {

// What a session needs of its engine; all outlive it.
struct SessionContext {
  const Model* model = nullptr;
  Forward* forward = nullptr;
  int batch_size = 512;
  int ctx_size = 0;
};

class SessionImpl final : public Session {
 public:
  SessionImpl(SessionContext context, std::unique_ptr<KvCache> cache);

  Result<GenerateResult> generate(std::span<const TokenId> prompt,
                                  const GenerateOptions& options) override;
  Result<std::span<const float>> prefill(std::span<const TokenId> prompt, int max_new,
                                         const GenerateOptions& options) override;
  Result<std::span<const float>> decode(TokenId token) override;
  CacheStats kv_stats() const override;
  int n_tokens() const override { return cache_->n_tokens(); }
  TokenId pending_token() const override { return pending_; }
  void set_trace(KvCache::TraceSink sink) override { cache_->set_trace(std::move(sink)); }
  const KvCache& cache() const override { return *cache_; }
  double attention_seconds() override { return attention_.take_seconds(); }

 private:
  Status run_prompt_layers(std::span<const TokenId> tokens, const GenerateOptions& options);
  Status check_usable() const;
  Status check_finite(std::span<const float> logits);
  Status check_layers();
  Status check_request(std::size_t n_prompt, const GenerateOptions& options) const;
  void decode_loop(const GenerateOptions& options, int n_predict, GenerateResult& result);

  SessionContext context_;
  std::unique_ptr<KvCache> cache_;
  TieredAttention attention_;
  std::vector<float> logits_;       // [n_vocab]
  std::vector<float> sampled_;      // logits with bans, for the sampler
  std::vector<float> last_hidden_;  // [n_embd]
  TokenId pending_ = -1;
  bool broken_ = false;  // a step failed half-way: the cache can not be trusted any more
  std::size_t workspace_peak_ = 0;
};

}  // namespace qevict
