#include "eval/sample_run.h"

#include <fmt/format.h>

#include <chrono>

#include "engine/perplexity.h"
#include "engine/prompt_fork.h"
#include "engine/text_stream.h"

namespace qevict {
namespace {

using Clock = std::chrono::steady_clock;

// Share of a sample's progress that its prompts are.
constexpr double kPromptShare = 0.5;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool first_line_is_complete(const std::string& text) {
  const std::size_t begin = text.find_first_not_of("\r\n");
  return begin != std::string::npos && text.find('\n', begin) != std::string::npos;
}

std::string full_name(const Contender& contender) {
  return fmt::format("{} at budget {}", contender.policy, budget_text(contender.budget));
}

std::unexpected<Error> named(const Contender& contender, Error error) {
  error.message = full_name(contender) + ": " + error.message;
  return std::unexpected(std::move(error));
}

Status check_cancel(const std::atomic<bool>* cancel) {
  if (cancel == nullptr || !cancel->load(std::memory_order_relaxed)) return {};
  return interrupted("interrupted while decoding (Ctrl-C): run it again");
}

}  // namespace

struct SampleRunner::Sequence {
  std::unique_ptr<Session> session;
  TokenId next = -1;
  TextStream stream{{}};
  Answer answer;
  std::size_t index = 0;  // of the contender

  // Takes `next` into the answer; true when that was its end.
  bool accept(const Sample& sample, const Tokenizer& tokenizer) {
    ++answer.n_tokens;
    if (tokenizer.is_eog(next)) {
      answer.stop_reason = StopReason::Eos;
      return true;
    }
    stream.push(tokenizer.piece(next));
    if (stream.stopped() || (sample.first_line_only && first_line_is_complete(stream.text()))) {
      answer.stop_reason = StopReason::Stop;
      return true;
    }
    answer.stop_reason = StopReason::Length;
    return answer.n_tokens >= sample.max_new_tokens;
  }
  void finish() {
    if (!stream.stopped()) stream.finish();
    answer.text = stream.text();
    answer.kv = session->kv_stats();
    session.reset();
  }
};

Status SampleRunner::open(const EvalPrompt& prompt, std::span<const Contender> contenders,
                          int max_new, const Options& options, std::vector<Sequence>& sequences) {
  std::vector<CacheConfig> configs;
  for (const Contender& c : contenders) configs.push_back(c.config);
  ForkOptions fork;
  fork.max_new = static_cast<int>(prompt.question.size()) + max_new;
  fork.cancel = options.cancel;
  fork.name = [&](std::size_t i) { return full_name(contenders[i]); };
  if (options.progress) {
    fork.progress = [&](double done) { options.progress(kPromptShare * done); };
  }
  auto forked = fork_prompt(engine_, prompt.context, configs, fork);
  if (!forked) return std::unexpected(forked.error());
  GenerateOptions append;
  append.cancel = options.cancel;
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    ForkedSession& from = (*forked)[i];
    Sequence& sequence = sequences[i];
    const Clock::time_point start = Clock::now();
    if (!prompt.question.empty()) {
      const auto logits = from.session->prefill(prompt.question, max_new, append);
      if (!logits) return named(contenders[i], logits.error());
      from.logits = *logits;
    }
    sequence.next = most_likely(from.logits);
    sequence.session = std::move(from.session);
    sequence.index = i;
    sequence.answer.seconds = from.seconds + seconds_since(start);
  }
  return {};
}

Status SampleRunner::step(std::vector<Sequence*>& live, std::span<const Contender> contenders) {
  const Clock::time_point start = Clock::now();
  std::vector<BatchInput> inputs;
  for (const Sequence* s : live) inputs.push_back({s->session.get(), s->next});
  const auto rows = batch_.decode(inputs);
  if (!rows) return std::unexpected(rows.error());
  for (std::size_t i = 0; i < live.size(); ++i) {
    const auto& row = (*rows)[i];
    if (!row) return named(contenders[live[i]->index], row.error());
    live[i]->next = most_likely(*row);
  }
  const double share = seconds_since(start) / static_cast<double>(live.size());
  for (Sequence* s : live) s->answer.seconds += share;
  return {};
}

Result<std::vector<Answer>> SampleRunner::run(const Sample& sample, const EvalPrompt& prompt,
                                              std::span<const Contender> contenders,
                                              const Options& options) {
  std::vector<Sequence> sequences(contenders.size());
  for (Sequence& s : sequences) s.stream = TextStream(sample.stop);
  if (Status s = open(prompt, contenders, sample.max_new_tokens, options, sequences); !s) {
    return std::unexpected(s.error());
  }
  std::vector<Sequence*> live;
  for (Sequence& s : sequences) live.push_back(&s);
  const Tokenizer& tokenizer = engine_.tokenizer();
  for (int i = 0; !live.empty(); ++i) {
    if (Status s = check_cancel(options.cancel); !s) return std::unexpected(s.error());
    std::erase_if(live, [&](Sequence* s) {
      const bool done = s->accept(sample, tokenizer);
      if (done) s->finish();
      return done;
    });
    if (live.empty()) break;
    if (Status s = step(live, contenders); !s) return std::unexpected(s.error());
    if (options.progress) {
      options.progress(kPromptShare + (1.0 - kPromptShare) * (i + 1) / sample.max_new_tokens);
    }
  }
  std::vector<Answer> answers;
  for (Sequence& s : sequences) answers.push_back(std::move(s.answer));
  return answers;
}

bool is_over_budget(const Contender& contender, const CacheStats& kv) {
  if (!contender.budget) return false;
  if (kv.budget_raised || kv.over_budget) return true;
  // Tokens that left the local zone wait there for their window and the next routing.
  const std::int64_t token_bytes =
      kv.n_tokens > 0 ? kv.full_cache_bytes / kv.n_tokens : std::int64_t{0};
  return kv.resident_bytes > kv.budget_bytes + 2 * contender.config.window * token_bytes;
}

}  // namespace qevict
