// The recall task: facts in a prompt, questions after it, on a model made for nothing else.
//
//   prompt    <|begin|> filler ... the code of KEY VALUE VALUE . filler ...
//   question  ? KEY -> VALUE VALUE .
//
// The model (tools/recall_model) answers everything from a whole cache, so that what is missing
// shows what compression lost. It detects regressions; it says nothing about ranking methods on
// language models. Prompts follow from their seed alone, on every machine.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "qevict/result.h"

namespace qevict {

// Token ids of the vocabulary in tools/recall_model/words.py.
struct RecallVocabulary {
  static constexpr TokenId kBegin = 0, kThe = 2, kCode = 3, kOf = 4, kStop = 5, kAsk = 6;
  static constexpr TokenId kFirstKey = 7, kFirstValue = 199, kFirstFiller = 391;
  static constexpr int kKeys = 192, kValues = 192, kFiller = 121, kSize = 608;
};

struct RecallFact {
  TokenId key = 0;
  TokenId values[2] = {0, 0};
};

struct RecallShape {
  int n_tokens = 2048;        // of the prompt; at least kSmallestRecallPrompt
  double filler_share = 0.4;  // 0..1: at least this share of the tokens is filler
  bool dense = false;         // facts without "the code of"
  std::uint32_t seed = 1;
};
inline constexpr int kSmallestRecallPrompt = 64;
inline constexpr int kRecallQuestionTokens = 5;

struct RecallPrompt {
  std::vector<TokenId> tokens;
  std::vector<RecallFact> facts;  // in an order that is not the prompt's: ask them from the front
};

struct RecallScore {
  int asked = 0;
  int right = 0;      // questions with both values right
  double nats = 0.0;  // -log probability of the right values, summed
  double prefill_seconds = 0.0, decode_seconds = 0.0;
  std::int64_t prompt_tokens = 0, decode_steps = 0;
  double accuracy() const { return asked > 0 ? static_cast<double>(right) / asked : 0.0; }
  // Shows blur that leaves the most likely word as it is.
  double nats_per_word() const { return asked > 0 ? nats / (2.0 * asked) : 0.0; }
  RecallScore& operator+=(const RecallScore& o);
};

RecallPrompt make_recall_prompt(const RecallShape& shape);

// Is this the model whose vocabulary the prompts are made of?
Status check_recall_model(const Engine& engine);

// Asks for the facts one after the other, kRecallQuestionTokens decode steps each; the model's own
// words are fed back. The prompt that the session has read left room for them. Errors: the
// session's; Interrupted when `cancel` is set.
Result<RecallScore> ask_facts(Session& session, std::span<const RecallFact> facts,
                              const std::atomic<bool>* cancel = nullptr);

// Reads the prompt in a new session, then asks its first n_questions facts.
Result<RecallScore> ask_recall(Session& session, const RecallPrompt& prompt, int n_questions,
                               const std::atomic<bool>* cancel = nullptr);

}  // namespace qevict
