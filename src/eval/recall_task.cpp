#include "eval/recall_task.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/perplexity.h"

namespace qevict {
namespace {

using V = RecallVocabulary;
using Clock = std::chrono::steady_clock;

constexpr int kShortestRun = 8, kLongestRun = 32;  // filler words between two facts

// The distributions of <random> differ between libraries.
int below(std::mt19937& random, int n) {
  return static_cast<int>(random() % static_cast<std::uint32_t>(n));
}

template <typename T>
void shuffle(std::vector<T>& items, std::mt19937& random) {
  for (std::size_t i = items.size(); i > 1; --i) {
    std::swap(items[i - 1], items[static_cast<std::size_t>(below(random, static_cast<int>(i)))]);
  }
}

// Filler words of each gap: runs, so that most windows hold facts or filler alone.
std::vector<int> filler_runs(int total, int n_gaps, std::mt19937& random) {
  std::vector<int> runs(static_cast<std::size_t>(n_gaps));
  while (total > 0) {
    const int length =
        std::min(total, kShortestRun + below(random, kLongestRun - kShortestRun + 1));
    runs[static_cast<std::size_t>(below(random, n_gaps))] += length;
    total -= length;
  }
  return runs;
}

std::vector<TokenId> shuffled_range(TokenId first, int n, std::mt19937& random) {
  std::vector<TokenId> ids(static_cast<std::size_t>(n));
  std::iota(ids.begin(), ids.end(), first);
  shuffle(ids, random);
  return ids;
}

// No two facts share a key, a first value or a second value: what a question asks is unambiguous.
std::vector<RecallFact> make_facts(int n, std::mt19937& random) {
  const std::vector<TokenId> keys = shuffled_range(V::kFirstKey, V::kKeys, random);
  const std::vector<TokenId> first = shuffled_range(V::kFirstValue, V::kValues, random);
  const std::vector<TokenId> second = shuffled_range(V::kFirstValue, V::kValues, random);
  std::vector<RecallFact> facts;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    facts.push_back({keys[i], {first[i], second[i]}});
  }
  return facts;
}

// One question; the two answers are read off the distributions after the key and the first word.
Status ask(Session& session, const RecallFact& fact, RecallScore& score) {
  TokenId answers[2] = {0, 0};
  TokenId next = V::kAsk;
  for (int step = 0; step < kRecallQuestionTokens; ++step) {
    const Result<std::span<const float>> logits = session.decode(next);
    if (!logits) return std::unexpected(logits.error());
    ++score.decode_steps;
    const int word = step - 1;
    if (word == 0 || word == 1) {
      answers[word] = most_likely(*logits);
      score.nats += negative_log_likelihood(*logits, fact.values[word]);
    }
    next = step == 0 ? fact.key : step < 3 ? answers[word] : TokenId{V::kStop};
  }
  ++score.asked;
  score.right += answers[0] == fact.values[0] && answers[1] == fact.values[1] ? 1 : 0;
  return {};
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

RecallScore& RecallScore::operator+=(const RecallScore& o) {
  asked += o.asked;
  right += o.right;
  nats += o.nats;
  prefill_seconds += o.prefill_seconds;
  decode_seconds += o.decode_seconds;
  prompt_tokens += o.prompt_tokens;
  decode_steps += o.decode_steps;
  return *this;
}

RecallPrompt make_recall_prompt(const RecallShape& shape) {
  QE_CHECK(shape.n_tokens >= kSmallestRecallPrompt);
  std::mt19937 random(shape.seed);
  const int fact_tokens = shape.dense ? 4 : 7;
  const int body = shape.n_tokens - 1;
  const double share = std::clamp(1.0 - shape.filler_share, 0.0, 1.0);
  const int n_facts = std::clamp(static_cast<int>(share * body / fact_tokens), 1, V::kKeys);
  RecallPrompt prompt;
  prompt.facts = make_facts(n_facts, random);
  const std::vector<int> runs = filler_runs(body - n_facts * fact_tokens, n_facts + 1, random);
  std::vector<TokenId>& tokens = prompt.tokens;
  tokens.push_back(V::kBegin);
  for (int i = 0; i <= n_facts; ++i) {
    for (int k = 0; k < runs[static_cast<std::size_t>(i)]; ++k) {
      tokens.push_back(V::kFirstFiller + below(random, V::kFiller));
    }
    if (i == n_facts) break;
    const RecallFact& fact = prompt.facts[static_cast<std::size_t>(i)];
    if (!shape.dense) tokens.insert(tokens.end(), {V::kThe, V::kCode, V::kOf});
    tokens.insert(tokens.end(), {fact.key, fact.values[0], fact.values[1], V::kStop});
  }
  shuffle(prompt.facts, random);
  return prompt;
}

Status check_recall_model(const Engine& engine) {
  const Tokenizer& tokenizer = engine.tokenizer();
  const std::vector<TokenId> expected = {V::kBegin,    V::kThe, V::kCode,       V::kOf,
                                         V::kFirstKey, V::kAsk, V::kFirstValue, V::kStop};
  const auto tokens = tokenizer.encode(" the code of harbor ? amber .", true, false);
  if (tokens && *tokens == expected && tokenizer.n_vocab() == V::kSize) return {};
  return bad_input("the model's vocabulary is not the recall model's (" + engine.model().path() +
                   "): give a file made by tools/recall_model");
}

Result<RecallScore> ask_facts(Session& session, std::span<const RecallFact> facts,
                              const std::atomic<bool>* cancel) {
  RecallScore score;
  const Clock::time_point start = Clock::now();
  for (const RecallFact& fact : facts) {
    if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) {
      return interrupted("interrupted while asking (Ctrl-C): run it again");
    }
    if (Status s = ask(session, fact, score); !s) return std::unexpected(s.error());
  }
  score.decode_seconds = seconds_since(start);
  return score;
}

Result<RecallScore> ask_recall(Session& session, const RecallPrompt& prompt, int n_questions,
                               const std::atomic<bool>* cancel) {
  const int n = std::min(n_questions, static_cast<int>(prompt.facts.size()));
  GenerateOptions options;
  options.cancel = cancel;
  const Clock::time_point start = Clock::now();
  const auto logits = session.prefill(prompt.tokens, n * kRecallQuestionTokens, options);
  if (!logits) return std::unexpected(logits.error());
  const double prefill_seconds = seconds_since(start);
  auto score =
      ask_facts(session, std::span(prompt.facts).first(static_cast<std::size_t>(n)), cancel);
  if (!score) return std::unexpected(score.error());
  score->prefill_seconds = prefill_seconds;
  score->prompt_tokens = static_cast<std::int64_t>(prompt.tokens.size());
  return *score;
}

}  // namespace qevict
