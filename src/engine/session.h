// One sequence: its cache, its attention, the generate loop.
#pragma once

#include <memory>
#include <vector>

#include "attention/tiered_attention.h"
#include "engine/engine.h"
#include "engine/prompt_pass.h"

namespace qevict {

// Takes back a prompt that was not finished, whatever the way out.
class PromptGuard {
 public:
  PromptGuard(KvCache& cache, TieredAttention& attention) : cache_(cache), attention_(attention) {}
  ~PromptGuard() {
    attention_.end_prompt();
    if (!committed_) cache_.rollback_prompt();
  }
  PromptGuard(const PromptGuard&) = delete;
  PromptGuard& operator=(const PromptGuard&) = delete;
  void commit() {
    cache_.commit_prompt();
    committed_ = true;
  }

 private:
  KvCache& cache_;
  TieredAttention& attention_;
  bool committed_ = false;
};

class SessionImpl final : public Session {
 public:
  SessionImpl(SessionContext context, std::unique_ptr<KvCache> cache);

  Result<GenerateResult> generate(std::span<const TokenId> prompt,
                                  const GenerateOptions& options) override;
  Result<std::span<const float>> prefill(std::span<const TokenId> prompt, int max_new,
                                         const GenerateOptions& options) override;
  Result<std::span<const float>> decode(TokenId token) override;
  Result<std::span<const float>> prefill(const PromptSnapshot& prompt, int max_new) override;
  Result<GenerateResult> generate(const PromptSnapshot& prompt,
                                  const GenerateOptions& options) override;
  Status prefill_synthetic(int n_tokens, int max_new, std::uint64_t seed) override;
  CacheStats kv_stats() const override;
  int n_tokens() const override { return cache_->n_tokens(); }
  TokenId pending_token() const override { return pending_; }
  void set_trace(KvCache::TraceSink sink) override {
    traced_ = sink != nullptr;
    cache_->set_trace(std::move(sink));
  }
  void set_observer(MassObserver* observer) override { attention_.set_observer(observer); }
  const KvCache& cache() const override { return *cache_; }
  double attention_seconds() override { return attention_.take_seconds(); }

  // The parts of decode(), in this order; a batch computes the model for many sessions in between.
  //
  // Why a token can not be fed; nothing has changed.
  Status check_step(TokenId token) const;
  // Scratch for the step. Throws std::bad_alloc; nothing has changed then.
  void reserve_step() { attention_.begin_step(); }
  // From here on the cache holds half a step: the session is unusable until end_step() succeeds.
  void begin_step();
  // Checks what the model computed and routes the cache when it is time. May run for distinct
  // sessions on several threads, if they are not traced.
  Status end_step(std::span<const float> logits);
  bool traced() const { return traced_; }
  TieredAttention& attention() { return attention_; }
  const SessionContext& context() const { return context_; }

 private:
  Status check_usable() const;
  Status check_request(std::size_t n_prompt, const GenerateOptions& options) const;
  // n_predict, lowered with a warning where the context is too short after n_prompt more tokens.
  int tokens_to_predict(std::size_t n_prompt, const GenerateOptions& options,
                        GenerateResult& result) const;
  // After the prompt, which took prefill_ms: generates and fills in the result.
  void finish_generate(const GenerateOptions& options, int n_predict, double prefill_ms,
                       GenerateResult& result);
  void decode_loop(const GenerateOptions& options, int n_predict, GenerateResult& result);

  SessionContext context_;
  std::unique_ptr<KvCache> cache_;
  TieredAttention attention_;
  std::vector<float> logits_;       // [n_vocab]
  std::vector<float> sampled_;      // logits with bans, for the sampler
  std::vector<float> last_hidden_;  // [n_embd]
  TokenId pending_ = -1;
  bool traced_ = false;
  bool broken_ = false;  // a step failed half-way: the cache can not be trusted any more
  std::size_t workspace_peak_ = 0;
};

}  // namespace qevict
