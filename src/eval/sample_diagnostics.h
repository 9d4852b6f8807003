// What a policy's cache misses while it answers a sample: --diagnostics of an evaluation.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "eval/cell.h"
#include "eval/sample_run.h"

namespace qevict {

// Decode steps that are looked at: along the full cache's own answer, its end ignored.
inline constexpr int kDiagnosedTokens = 64;

// Diagnostics are of policies that route again and again.
bool can_diagnose(const Contender& contender);

// A line of JSON for each contender, which can all be diagnosed: task, id, policy, budget, and
// everything of diagnostics_json.h. The prompt is of WholePrompt.
Result<std::vector<std::string>> diagnose_sample(Engine& engine, const std::string& task,
                                                 const std::string& id, const EvalPrompt& prompt,
                                                 std::span<const Contender> contenders,
                                                 const SampleRunner::Options& options);

// Which line this is, as CellResult::key(). "" when it is none.
std::string diagnostics_key(const std::string& line);

}  // namespace qevict
