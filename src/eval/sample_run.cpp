#include "eval/sample_run.h"

#include <fmt/format.h>

#include <chrono>

#include "engine/perplexity.h"
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

std::unexpected<Error> named(const Contender& contender, Error error) {
  error.message = fmt::format("{} at budget {}: {}", contender.policy,
                              budget_text(contender.budget), error.message);
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
  const int after_context = static_cast<int>(prompt.question.size()) + max_new;
  GenerateOptions generate;
  generate.cancel = options.cancel;
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    const Clock::time_point start = Clock::now();
    if (options.progress) {
      generate.prefill_progress = [&, i](int done, int total) {
        const double part = static_cast<double>(i) + static_cast<double>(done) / total;
        options.progress(kPromptShare * part / static_cast<double>(contenders.size()));
      };
    }
    auto session = engine_.create_session(contenders[i].config);
    if (!session) return named(contenders[i], session.error());
    auto logits = (*session)->prefill(prompt.context, after_context, generate);
    if (logits && !prompt.question.empty()) {
      generate.prefill_progress = nullptr;
      logits = (*session)->prefill(prompt.question, max_new, generate);
    }
    if (!logits) return named(contenders[i], logits.error());
    Sequence& sequence = sequences[i];
    sequence.session = std::move(*session);
    sequence.next = most_likely(*logits);
    sequence.index = i;
    sequence.answer.seconds = seconds_since(start);
  }
  return {};
}

Status SampleRunner::step(std::vector<Sequence*>& live, std::span<const Contender> contenders) {
  const Clock::time_point start = Clock::now();
  std::vector<BatchInput> inputs;
  for (const Sequence* s : live) inputs.push_back({s->session.get(), s->next});
  const auto rows = batch_->decode(inputs);
  for (std::size_t i = 0; i < live.size(); ++i) {
    if (!rows[i]) return named(contenders[live[i]->index], rows[i].error());
    live[i]->next = most_likely(*rows[i]);
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
  if (kv.budget_raised) return true;
  // Tokens that left the local zone wait there for their window and the next routing.
  const std::int64_t token_bytes =
      kv.n_tokens > 0 ? kv.full_cache_bytes / kv.n_tokens : std::int64_t{0};
  return kv.resident_bytes > kv.budget_bytes + 2 * contender.config.window * token_bytes;
}

}  // namespace qevict
