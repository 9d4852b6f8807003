#include "engine/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>

#include "engine/prompt_fork.h"
#include "engine/run_report.h"
#include "engine/uniform_batch.h"

namespace qevict {
namespace {

using Clock = std::chrono::steady_clock;

// As the public one, with the logits' log_sum_exp() at hand.
double kl_divergence(std::span<const float> reference, double reference_sum,
                     std::span<const float> logits, double logits_sum) {
  double sum = 0.0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double p = reference[i] - reference_sum;
    sum += std::exp(p) * (p - (logits[i] - logits_sum));
  }
  return std::max(sum, 0.0);  // rounding can leave -1e-17
}

CacheConfig full_cache() {
  CacheConfig full;
  full.policy = "full";
  return full;
}

// What is collected for one cell, over all places.
struct Scores {
  std::vector<double> nll, kl;
  int same_top1 = 0;
  std::int64_t kv_resident_bytes = 0;
};

class Measurement {
 public:
  Measurement(Engine& engine, std::span<const PerplexityCell> cells, const PerplexityOptions& o)
      : engine_(engine), cells_(cells), o_(o), scores_(cells.size()), batch_(engine) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (cells[i].config.policy == "full") reference_ = i;
    }
  }

  // One place: the text from its first prompt token on.
  Status run(std::span<const TokenId> prompt, std::span<const TokenId> continuation, double begin,
             double share) {
    if (Status s = open(prompt, begin, share); !s) return s;
    for (std::size_t i = 0; i < continuation.size(); ++i) {
      if (i > 0) score(continuation[i]);
      if (i + 1 == continuation.size()) break;
      if (o_.cancel != nullptr && o_.cancel->load(std::memory_order_relaxed)) {
        return interrupted("interrupted while decoding (Ctrl-C): run it again");
      }
      if (Status s = decode(continuation[i]); !s) return s;
      if (o_.progress) {
        const double done = static_cast<double>(i + 1) / static_cast<double>(continuation.size());
        o_.progress(begin + share * (0.5 + 0.5 * done));
      }
    }
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      scores_[c].kv_resident_bytes =
          std::max(scores_[c].kv_resident_bytes, sessions_[c].session->kv_stats().resident_bytes);
    }
    return {};
  }

  std::vector<PerplexityResult> results() const {
    std::vector<PerplexityResult> results;
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      const Scores& s = scores_[c];
      const auto n = static_cast<double>(s.nll.size());
      PerplexityResult r;
      r.policy = cells_[c].policy;
      r.budget = cells_[c].config.budget;
      r.prompt_tokens = o_.n_prompt;
      r.scored_tokens = static_cast<int>(s.nll.size());
      const double mean = std::accumulate(s.nll.begin(), s.nll.end(), 0.0) / n;
      double variance = 0.0;
      for (const double x : s.nll) variance += (x - mean) * (x - mean);
      r.ppl = std::exp(mean);
      r.ppl_stderr = n > 1 ? r.ppl * std::sqrt(variance / (n - 1) / n) : 0.0;
      if (o_.kl) {
        r.kl_mean = std::accumulate(s.kl.begin(), s.kl.end(), 0.0) / n;
        r.kl_p99 = quantile(s.kl, 0.99);
        r.same_top1 = s.same_top1 / n;
      }
      r.tpot_median_ms = quantile(step_ms_, 0.5);
      r.kv_resident_bytes = s.kv_resident_bytes;
      results.push_back(std::move(r));
    }
    return results;
  }

 private:
  bool needs_reference() const { return o_.kl && reference_ == cells_.size(); }

  // The cells' sessions, then the reference's where it is none of them.
  Status open(std::span<const TokenId> prompt, double begin, double share) {
    sessions_.clear();
    std::vector<CacheConfig> configs;
    for (const PerplexityCell& cell : cells_) configs.push_back(cell.config);
    if (needs_reference()) configs.push_back(full_cache());
    ForkOptions fork;
    fork.max_new = o_.n_continue;
    fork.cancel = o_.cancel;
    if (o_.progress) {
      fork.progress = [&](double done) { o_.progress(begin + share * 0.5 * done); };
    }
    auto sessions = fork_prompt(engine_, prompt, configs, fork);
    if (!sessions) return std::unexpected(sessions.error());
    sessions_ = std::move(*sessions);
    return {};
  }

  void score(TokenId token) {
    const std::span<const float> reference =
        o_.kl ? sessions_[reference_].logits : std::span<const float>();
    const TokenId top = o_.kl ? most_likely(reference) : 0;
    const double reference_sum = o_.kl ? log_sum_exp(reference) : 0.0;
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      const std::span<const float> logits = sessions_[c].logits;
      const double sum = log_sum_exp(logits);
      scores_[c].nll.push_back(sum - logits[static_cast<std::size_t>(token)]);
      if (!o_.kl) continue;
      scores_[c].kl.push_back(
          c == reference_ ? 0.0 : kl_divergence(reference, reference_sum, logits, sum));
      scores_[c].same_top1 += most_likely(logits) == top;
    }
  }

  // A step of all sequences together.
  Status decode(TokenId token) {
    inputs_.clear();
    for (const ForkedSession& d : sessions_) inputs_.push_back({d.session.get(), token});
    const Clock::time_point start = Clock::now();
    const auto rows = batch_.decode(inputs_);
    if (!rows) return std::unexpected(rows.error());
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    for (std::size_t i = 0; i < rows->size(); ++i) {
      const auto& row = (*rows)[i];
      if (!row) return std::unexpected(row.error());
      sessions_[i].logits = *row;
    }
    step_ms_.push_back(ms / static_cast<double>(rows->size()));
    return {};
  }

  Engine& engine_;
  std::span<const PerplexityCell> cells_;
  const PerplexityOptions& o_;
  std::vector<Scores> scores_;
  UniformBatch batch_;
  std::vector<ForkedSession> sessions_;  // of the cells, then the reference's if it is none
  std::vector<BatchInput> inputs_;
  std::vector<double> step_ms_;            // of a step, a sequence's share
  std::size_t reference_ = cells_.size();  // index into sessions_
};

}  // namespace

double kl_divergence(std::span<const float> reference, std::span<const float> logits) {
  return kl_divergence(reference, log_sum_exp(reference), logits, log_sum_exp(logits));
}

double negative_log_likelihood(std::span<const float> logits, TokenId token) {
  return log_sum_exp(logits) - logits[static_cast<std::size_t>(token)];
}

TokenId most_likely(std::span<const float> logits) {
  return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

Result<std::vector<TokenId>> full_cache_answer(Engine& engine, std::span<const TokenId> prompt,
                                               int n, const std::atomic<bool>* cancel) {
  const auto session = engine.create_session(full_cache());
  if (!session) return std::unexpected(session.error());
  GenerateOptions generate;
  generate.n_predict = n;
  generate.ignore_eos = true;
  generate.cancel = cancel;
  auto answer = (*session)->generate(prompt, generate);
  if (!answer) return std::unexpected(answer.error());
  if (answer->failure) return std::unexpected(*answer->failure);
  if (answer->stop_reason == StopReason::Interrupted) {
    return interrupted("interrupted while decoding (Ctrl-C): run it again");
  }
  return std::move(answer->tokens);
}

Result<std::vector<PerplexityResult>> measure_perplexity(Engine& engine,
                                                         std::span<const TokenId> text,
                                                         std::span<const PerplexityCell> cells,
                                                         const PerplexityOptions& options) {
  if (options.n_prompt < 1 || options.n_continue < 2) {
    return bad_input(fmt::format(
        "prompt {} and continuation {} (--prompt, --continue): give at least 1 and 2 tokens",
        options.n_prompt, options.n_continue));
  }
  if (options.own_answer && !options.forced.empty()) {
    return bad_input("two continuations (--forced-tokens, --own-answer): leave one of them out");
  }
  const bool forced = options.own_answer || !options.forced.empty();
  if (options.stride > 0 && forced) {
    return bad_input("forced tokens follow one place (--stride): leave one of the two out");
  }
  if (!options.forced.empty() &&
      options.forced.size() < static_cast<std::size_t>(options.n_continue)) {
    return bad_input(fmt::format("{} forced tokens, {} wanted (--continue): lower it",
                                 options.forced.size(), options.n_continue));
  }
  const int needed = options.n_prompt + (forced ? 0 : options.n_continue);
  if (text.size() < static_cast<std::size_t>(needed)) {
    return bad_input(
        fmt::format("the text has {} tokens, {} are needed (--prompt {}, --continue {}): give a "
                    "longer text or lower them",
                    text.size(), needed, options.n_prompt, options.n_continue));
  }
  if (options.n_prompt + options.n_continue > engine.ctx_size()) {
    return bad_input(fmt::format("{} tokens are needed, the context has {} (--prompt): lower it",
                                 options.n_prompt + options.n_continue, engine.ctx_size()));
  }
  std::vector<TokenId> continued = options.forced;
  if (options.own_answer) {
    const auto prompt = text.first(static_cast<std::size_t>(options.n_prompt));
    auto answer = full_cache_answer(engine, prompt, options.n_continue, options.cancel);
    if (!answer) return std::unexpected(answer.error());
    continued = std::move(*answer);
  }
  std::vector<std::size_t> places;
  for (std::size_t at = 0; at + static_cast<std::size_t>(needed) <= text.size();
       at += static_cast<std::size_t>(options.stride)) {
    places.push_back(at);
    if (options.stride <= 0) break;
  }
  Measurement measurement(engine, cells, options);
  const double share = 1.0 / static_cast<double>(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    const auto n_prompt = static_cast<std::size_t>(options.n_prompt);
    const auto n_continue = static_cast<std::size_t>(options.n_continue);
    const std::span<const TokenId> continuation =
        forced ? std::span<const TokenId>(continued).first(n_continue)
               : text.subspan(places[i] + n_prompt, n_continue);
    if (Status s = measurement.run(text.subspan(places[i], n_prompt), continuation,
                                   static_cast<double>(i) * share, share);
        !s) {
      return std::unexpected(s.error());
    }
  }
  return measurement.results();
}

}  // namespace qevict
