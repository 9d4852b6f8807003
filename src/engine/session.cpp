#include "engine/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <new>

#include "engine/prompt_snapshot.h"
#include "engine/run_report.h"
#include "engine/text_stream.h"

namespace qevict {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

bool cancelled(const GenerateOptions& options) {
  return options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed);
}

std::unexpected<Error> out_of_memory(int n_tokens) {
  return runtime_error(
      fmt::format("out of memory ({} tokens in the cache): lower --kv-budget", n_tokens));
}

}  // namespace

const char* to_string(StopReason reason) {
  switch (reason) {
    case StopReason::Eos:
      return "eos";
    case StopReason::Length:
      return "length";
    case StopReason::Stop:
      return "stop";
    case StopReason::Interrupted:
      return "interrupted";
    case StopReason::Failed:
      return "error";
  }
  return "";
}

SessionImpl::SessionImpl(SessionContext context, std::unique_ptr<KvCache> cache)
    : context_(context),
      cache_(std::move(cache)),
      attention_(*cache_, active_kernels(), context.forward->n_threads()),
      logits_(context.model->hparams().n_vocab),
      last_hidden_(context.model->hparams().n_embd) {}

CacheStats SessionImpl::kv_stats() const {
  return collect_stats(*cache_, std::max(workspace_peak_, attention_.workspace_peak_bytes()));
}

Result<std::span<const float>> SessionImpl::prefill(std::span<const TokenId> prompt, int max_new,
                                                    const GenerateOptions& options) {
  if (prompt.empty()) return bad_input("the prompt is empty (prompt): give at least one token");
  if (Status s = check_usable(); !s) return std::unexpected(s.error());
  attention_.take_nonfinite_layer();  // of a prompt that failed otherwise
  try {
    if (Status s = cache_->begin_prompt(static_cast<int>(prompt.size()), max_new); !s) {
      return std::unexpected(s.error());
    }
    PromptGuard guard(*cache_, attention_);
    std::size_t workspace = 0;
    const auto finish = [&](int layer) { return attention_.finish_layer(layer); };
    if (Status s = run_prompt_layers(context_, attention_, prompt, options, finish,
                                     last_hidden_.data(), workspace);
        !s) {
      return std::unexpected(s.error());
    }
    workspace_peak_ = std::max(
        workspace_peak_, workspace + attention_.workspace_peak_bytes() + cache_->backup_bytes());
    if (Status s = context_.forward->head(last_hidden_.data(), logits_.data()); !s) {
      return std::unexpected(s.error());
    }
    if (Status s = check_finite(logits_); !s) return std::unexpected(s.error());
    guard.commit();
    context_.forward->release_prompt_workspace();
  } catch (const std::bad_alloc&) {
    return runtime_error(
        fmt::format("out of memory ({} prompt tokens): shorten the prompt or lower --batch-size",
                    prompt.size()));
  }
  return std::span<const float>(logits_);
}

Status SessionImpl::check_usable() const {
  if (!broken_) return {};
  return runtime_error("an earlier step failed half-way (session): start a new session");
}

Status SessionImpl::check_step(TokenId token) const {
  if (Status s = check_usable(); !s) return s;
  if (token < 0 || token >= context_.model->hparams().n_vocab) {
    return bad_input(fmt::format("token id {} is outside the vocabulary (decode): use ids 0..{}",
                                 token, context_.model->hparams().n_vocab - 1));
  }
  const std::int64_t room =
      std::min<std::int64_t>(context_.ctx_size, cache_->budget().context_tokens);
  if (cache_->n_tokens() == 0 || cache_->n_tokens() >= room) {
    return bad_input(
        fmt::format("no room for another token ({} in the cache, {} planned): read a prompt with a "
                    "larger max_new",
                    cache_->n_tokens(), room));
  }
  return {};
}

void SessionImpl::begin_step() {
  // A step that fails has already left its row and mass in some layers.
  broken_ = true;
  cache_->begin_step();
}

Status SessionImpl::end_step(std::span<const float> logits) {
  if (Status s = check_stored(attention_); !s) return s;
  if (Status s = check_finite(logits); !s) return s;
  try {
    cache_->end_step();
  } catch (const std::bad_alloc&) {
    return out_of_memory(cache_->n_tokens());
  }
  broken_ = false;
  return {};
}

Result<std::span<const float>> SessionImpl::decode(TokenId token) {
  if (Status s = check_step(token); !s) return std::unexpected(s.error());
  try {
    reserve_step();
    if (Status s = context_.forward->plan_decode(1); !s) return std::unexpected(s.error());
  } catch (const std::bad_alloc&) {
    return out_of_memory(cache_->n_tokens());
  }
  begin_step();
  if (Status s = context_.forward->decode(token, attention_, logits_.data()); !s) {
    return std::unexpected(s.error());
  }
  if (Status s = end_step(logits_); !s) return std::unexpected(s.error());
  return std::span<const float>(logits_);
}

Status SessionImpl::check_request(std::size_t n_prompt, const GenerateOptions& options) const {
  if (n_prompt == 0) return bad_input("the prompt is empty (prompt): give at least one token");
  if (options.n_predict < 1) {
    return bad_input(
        fmt::format("n-predict is {} (--n-predict): give at least 1", options.n_predict));
  }
  const std::int64_t used = cache_->n_tokens() + static_cast<std::int64_t>(n_prompt);
  if (used >= context_.ctx_size) {
    return bad_input(fmt::format(
        "the prompt is longer than the context ({} tokens with the {} in the cache, context {}): "
        "shorten the prompt or raise --ctx-size",
        used, cache_->n_tokens(), context_.ctx_size));
  }
  for (const TokenId t : options.forced) {
    if (t < 0 || t >= context_.model->hparams().n_vocab) {
      return bad_input(
          fmt::format("token id {} is outside the vocabulary (forced tokens): use ids 0..{}", t,
                      context_.model->hparams().n_vocab - 1));
    }
  }
  return {};
}

Result<GenerateResult> SessionImpl::generate(std::span<const TokenId> prompt,
                                             const GenerateOptions& options) {
  std::vector<TokenId> tokens;
  if (pending_ >= 0) tokens.push_back(pending_);
  tokens.insert(tokens.end(), prompt.begin(), prompt.end());
  if (Status s = check_request(prompt.empty() ? 0 : tokens.size(), options); !s) {
    return std::unexpected(s.error());
  }
  GenerateResult result;
  result.rss_before_bytes = resident_set_bytes();
  const int n_predict = tokens_to_predict(tokens.size(), options, result);
  attention_.take_seconds();
  const Clock::time_point start = Clock::now();
  const Result<std::span<const float>> logits = prefill(tokens, n_predict, options);
  if (!logits) return std::unexpected(logits.error());
  const double prefill_ms = ms_since(start);
  result.prompt_tokens = static_cast<int>(prompt.size());
  result.timing.prefill_tok_s = 1000.0 * static_cast<double>(tokens.size()) / prefill_ms;
  finish_generate(options, n_predict, prefill_ms, result);
  return result;
}

Result<GenerateResult> SessionImpl::generate(const PromptSnapshot& prompt,
                                             const GenerateOptions& options) {
  const auto n_prompt = static_cast<std::size_t>(prompt.n_tokens());
  if (Status s = check_request(n_prompt, options); !s) return std::unexpected(s.error());
  GenerateResult result;
  result.rss_before_bytes = resident_set_bytes();
  const int n_predict = tokens_to_predict(n_prompt, options, result);
  const Clock::time_point start = Clock::now();
  const Result<std::span<const float>> logits = prefill(prompt, n_predict);
  if (!logits) return std::unexpected(logits.error());
  result.prompt_tokens = prompt.n_tokens();
  finish_generate(options, n_predict, ms_since(start), result);
  return result;
}

int SessionImpl::tokens_to_predict(std::size_t n_prompt, const GenerateOptions& options,
                                   GenerateResult& result) const {
  const std::int64_t room =
      context_.ctx_size - cache_->n_tokens() - static_cast<std::int64_t>(n_prompt);
  if (options.n_predict <= room) return options.n_predict;
  result.warnings.push_back(fmt::format(
      "only {} tokens fit into the context of {} after the prompt: n-predict lowered from {}", room,
      context_.ctx_size, options.n_predict));
  return static_cast<int>(room);
}

void SessionImpl::finish_generate(const GenerateOptions& options, int n_predict, double prefill_ms,
                                  GenerateResult& result) {
  pending_ = -1;
  result.rss_after_prefill_bytes = resident_set_bytes();
  const BudgetPlan& plan = cache_->budget();
  if (plan.raised) {
    result.warnings.push_back(fmt::format(
        "the budget is below sinks, local zone and one window: raised to {} tokens ({} bytes){}",
        plan.total_tokens, plan.budget_bytes,
        plan.uncompressed ? ", the whole context: nothing is compressed" : ""));
  }
  if (plan.over_budget) {
    result.warnings.push_back(
        fmt::format("policy {} keeps at least {} tokens of a prompt: more bytes are held than the "
                    "budget allows",
                    cache_->config().policy, plan.kept_tokens));
  }
  attention_.take_seconds();
  result.timing.ttft_ms = prefill_ms;
  decode_loop(options, n_predict, result);
  Timing& timing = result.timing;
  timing.tpot_median_ms = quantile(timing.step_ms, 0.5);
  timing.tpot_p95_ms = quantile(timing.step_ms, 0.95);
  result.kv = kv_stats();
  result.peak_rss_bytes = peak_resident_set_bytes();
}

void SessionImpl::decode_loop(const GenerateOptions& options, int n_predict,
                              GenerateResult& result) {
  const Tokenizer& tokenizer = context_.model->tokenizer();
  const std::unique_ptr<Sampler> sampler =
      Sampler::create(options.sampler, context_.model->hparams().n_vocab);
  const std::vector<TokenId> eog = tokenizer.eog_tokens();
  const bool forced = !options.forced.empty();
  if (forced) n_predict = std::min<int>(n_predict, static_cast<int>(options.forced.size()));
  TextStream stream(options.stop);
  const auto emit = [&](const std::string& text) {
    if (!text.empty() && options.on_text) options.on_text(text);
  };
  const double routing_before = cache_->routing_seconds();
  const std::int64_t events_before = cache_->counters().events;
  const Clock::time_point start = Clock::now();
  result.stop_reason = StopReason::Length;
  for (int i = 0; i < n_predict; ++i) {
    if (cancelled(options)) {
      result.stop_reason = StopReason::Interrupted;
      break;
    }
    if (options.on_logits) options.on_logits(i, logits_);
    if (options.logprobs > 0) result.logprobs.push_back(top_logprobs(logits_, options.logprobs));
    TokenId token = 0;
    if (forced) {
      token = options.forced[i];
    } else {
      sampled_ = logits_;
      if (options.ignore_eos) {
        for (const TokenId t : eog) sampled_[t] = -INFINITY;
      }
      token = sampler->sample(sampled_);
    }
    result.tokens.push_back(token);
    pending_ = token;
    if (i == 0) result.timing.ttft_ms += ms_since(start);
    const bool end = tokenizer.is_eog(token) && !forced && !options.ignore_eos;
    if (end) {
      // The chat template writes the end of a turn itself.
      pending_ = -1;
      result.stop_reason = StopReason::Eos;
      break;
    }
    emit(stream.push(tokenizer.piece(token)));
    if (stream.stopped()) {
      result.stop_reason = StopReason::Stop;
      break;
    }
    if (i + 1 == n_predict) break;  // the last token is not fed
    const Clock::time_point step = Clock::now();
    const Result<std::span<const float>> logits = decode(token);
    if (!logits) {
      result.stop_reason = StopReason::Failed;
      result.failure = logits.error();
      break;
    }
    pending_ = -1;
    result.timing.step_ms.push_back(ms_since(step));
  }
  if (!stream.stopped()) emit(stream.finish());
  result.text = stream.text();
  const auto steps = static_cast<double>(result.timing.step_ms.size());
  if (steps > 0) result.timing.attention_ms_per_token = 1000.0 * attention_.take_seconds() / steps;
  const std::int64_t events = cache_->counters().events - events_before;
  if (events > 0) {
    result.timing.routing_ms_per_event =
        1000.0 * (cache_->routing_seconds() - routing_before) / static_cast<double>(events);
  }
}

}  // namespace qevict
