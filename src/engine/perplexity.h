// Perplexity, and KL divergence from the full cache, along a text that is decoded token by token
// after the prompt was compressed. (Scoring a text in one pass never meets the compressed cache.)
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace qevict {

// KL(p || q) in nats of p = softmax(reference) and q = softmax(logits), over the whole vocabulary,
// in double. Never negative.
double kl_divergence(std::span<const float> reference, std::span<const float> logits);
// -log softmax(logits)[token], in double.
double negative_log_likelihood(std::span<const float> logits, TokenId token);
// The most likely token; the lower id wins a tie.
TokenId most_likely(std::span<const float> logits);

// The full cache's most likely continuation of the prompt: n tokens, or as many as the context has
// room for; end-of-generation tokens are left out.
Result<std::vector<TokenId>> full_cache_answer(Engine& engine, std::span<const TokenId> prompt,
                                               int n, const std::atomic<bool>* cancel = nullptr);

// One row of the result: a policy at a budget.
struct PerplexityCell {
  std::string policy;  // as typed, parameters included
  CacheConfig config;
};

struct PerplexityOptions {
  int n_prompt = 4096;   // tokens that are read and compressed
  int n_continue = 256;  // tokens that are decoded after them
  int stride = 0;        // > 0: again from every stride-th token on, as long as the text lasts
  bool kl = false;       // also decode with the full cache and compare
  // The continuation, in place of the text's: its first n_continue tokens. One place only.
  std::vector<TokenId> forced;
  // The continuation is full_cache_answer() to the prompt. One place only.
  bool own_answer = false;
  std::function<void(double)> progress;  // 0..1
  const std::atomic<bool>* cancel = nullptr;
};

struct PerplexityResult {
  std::string policy;
  KvBudget budget;
  int prompt_tokens = 0;
  // The continuation's tokens but the first of each place, which is predicted by the prompt's own
  // logits, before anything compressed was read.
  int scored_tokens = 0;
  double ppl = 0.0, ppl_stderr = 0.0;  // standard error by the delta method
  double kl_mean = 0.0, kl_p99 = 0.0;  // nats; with PerplexityOptions::kl
  double same_top1 = 0.0;              // share of tokens where both have the same most likely one
  double tpot_median_ms = 0.0;  // of a step, this sequence's share: all cells are decoded together
  std::int64_t kv_resident_bytes = 0;  // at the end, the most over the places
};

// The cells in the order given. All of them are decoded side by side, as one batch, so memory holds
// all of their caches. Errors: BadInput when the text is shorter than n_prompt + n_continue,
// Interrupted.
Result<std::vector<PerplexityResult>> measure_perplexity(Engine& engine,
                                                         std::span<const TokenId> text,
                                                         std::span<const PerplexityCell> cells,
                                                         const PerplexityOptions& options);

}  // namespace qevict
