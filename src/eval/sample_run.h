// One sample answered with many policies and budgets: the prompt once, all answers side by side.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/uniform_batch.h"
#include "eval/cell.h"
#include "eval/prompt.h"
#include "eval/task.h"

namespace qevict {

// A row of every table: a policy with its parameters, at a budget.
struct Contender {
  std::string policy;              // as typed
  std::optional<KvBudget> budget;  // none: the policy does not take one
  CacheConfig config;
};

// The answer of one contender.
struct Answer {
  std::string text;  // without special tokens, cut before a stop string
  int n_tokens = 0;  // an end-of-generation token counts
  StopReason stop_reason = StopReason::Length;
  CacheStats kv;  // at the end of the answer
  double seconds = 0.0;
};

// A contender's answer does not depend on the others. Greedy decoding, the same stop rules for all:
// an end-of-generation token, one of Sample::stop, max_new_tokens, and with first_line_only the end
// of the first line that is not empty.
class SampleRunner {
 public:
  explicit SampleRunner(Engine& engine) : engine_(engine), batch_(engine) {}

  struct Options {
    const std::atomic<bool>* cancel = nullptr;
    std::function<void(double)> progress;  // 0..1 of this sample
  };
  // Answers in the order of the contenders, whose caches are in memory together. Errors: the
  // session's, with the contender's name; Interrupted.
  Result<std::vector<Answer>> run(const Sample& sample, const EvalPrompt& prompt,
                                  std::span<const Contender> contenders, const Options& options);

 private:
  struct Sequence;
  Status open(const EvalPrompt& prompt, std::span<const Contender> contenders, int max_new,
              const Options& options, std::vector<Sequence>& sequences);
  Status step(std::vector<Sequence*>& live, std::span<const Contender> contenders);

  Engine& engine_;
  UniformBatch batch_;
};

// More is held than the budget and the tokens that wait for the next routing, or the budget was
// raised to what the policy needs.
bool is_over_budget(const Contender& contender, const CacheStats& kv);

}  // namespace qevict
