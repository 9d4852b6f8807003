#include "engine/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <new>

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

Status SessionImpl::check_finite(std::span<const float> logits) {
  bool finite = true;  // no early return, so that the loop is vectorised
  for (const float x : logits) finite &= std::fabs(x) <= std::numeric_limits<float>::max();
  if (finite) return {};
  return runtime_error(
      "the model computed a value that is not a number (logits): the file's weights are damaged; "
      "fetch it again");
}

Status SessionImpl::check_layers() {
  const int layer = attention_.take_nonfinite_layer();
  if (layer < 0) return {};
  return runtime_error(fmt::format(
      "the model computed keys or values that fp16 cannot hold (layer {}): the file's weights are "
      "damaged or need another precision; fetch it again",
      layer));
}

Status SessionImpl::run_prompt_layers(std::span<const TokenId> tokens,
                                      const GenerateOptions& options) {
  const HParams& hp = context_.model->hparams();
  const int n = static_cast<int>(tokens.size());
  const int block = context_.batch_size;
  const int blocks = (n + block - 1) / block;
  AlignedBuffer<float> hidden;
  hidden.resize_exactly(static_cast<std::size_t>(n) * hp.n_embd);
  if (Status s = context_.forward->embed(tokens, hidden.data()); !s) return s;
  attention_.begin_prompt(n, block);
  for (int layer = 0; layer < hp.n_layers; ++layer) {
    attention_.begin_layer(layer);
    for (int b = 0; b < blocks; ++b) {
      if (cancelled(options))
        return interrupted("interrupted while reading the prompt (Ctrl-C): run it again");
      const int first = b * block;
      const int count = std::min(block, n - first);
      attention_.set_block(first, count);
      // Of the last layer only the last token's output is ever used.
      const int last_rows = layer + 1 == hp.n_layers ? 1 : 0;
      float* rows = hidden.data() + static_cast<std::size_t>(first) * hp.n_embd;
      if (Status s = context_.forward->layer(layer, rows, count, attention_, last_rows); !s)
        return s;
      if (Status s = check_layers(); !s) return s;
      if (options.prefill_progress)
        options.prefill_progress(layer * blocks + b + 1, hp.n_layers * blocks);
    }
    attention_.finish_layer(layer);
  }
  workspace_peak_ =
      std::max(workspace_peak_, attention_.workspace_peak_bytes() + hidden.bytes() +
                                    context_.forward->workspace_bytes() + cache_->backup_bytes());
  std::copy_n(hidden.data() + static_cast<std::size_t>(n - 1) * hp.n_embd, hp.n_embd,
              last_hidden_.data());
  return {};
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
    if (Status s = run_prompt_layers(prompt, options); !s) return std::unexpected(s.error());
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
  if (Status s = check_layers(); !s) return s;
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
  int n_predict = options.n_predict;
  const std::int64_t room =
      context_.ctx_size - cache_->n_tokens() - static_cast<std::int64_t>(tokens.size());
  if (n_predict > room) {
    n_predict = static_cast<int>(room);
    result.warnings.push_back(fmt::format(
        "only {} tokens fit into the context of {} after the prompt: n-predict lowered from {}",
        room, context_.ctx_size, options.n_predict));
  }
  attention_.take_seconds();
  const Clock::time_point start = Clock::now();
  const Result<std::span<const float>> logits = prefill(tokens, n_predict, options);
  if (!logits) return std::unexpected(logits.error());
  const double prefill_ms = ms_since(start);
  pending_ = -1;
  result.prompt_tokens = static_cast<int>(prompt.size());
  result.timing.prefill_tok_s = 1000.0 * static_cast<double>(tokens.size()) / prefill_ms;
  result.rss_after_prefill_bytes = resident_set_bytes();
  const BudgetPlan& plan = cache_->budget();
  if (plan.raised) {
    result.warnings.push_back(fmt::format(
        "the budget is below sinks, local zone and one window: raised to {} tokens ({} bytes){}",
        plan.total_tokens, plan.budget_bytes,
        plan.uncompressed ? ", the whole context: nothing is compressed" : ""));
  }
  attention_.take_seconds();
  result.timing.ttft_ms = prefill_ms;
  decode_loop(options, n_predict, result);
  Timing& timing = result.timing;
  timing.tpot_median_ms = quantile(timing.step_ms, 0.5);
  timing.tpot_p95_ms = quantile(timing.step_ms, 0.95);
  result.kv = kv_stats();
  result.peak_rss_bytes = peak_resident_set_bytes();
  return result;
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
