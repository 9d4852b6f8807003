#include "eval/sample_diagnostics.h"

#include <nlohmann/json.hpp>

#include "engine/perplexity.h"
#include "eval/diagnostics_json.h"
#include "eval/diagnostics_run.h"
#include "policies/registry.h"

namespace qevict {
bool can_diagnose(const Contender& contender) {
  const PolicySpec* policy = find_policy(contender.config.policy);
  return policy != nullptr && policy->schedule == Schedule::EveryWindow;
}

Result<std::vector<std::string>> diagnose_sample(Engine& engine, const std::string& task,
                                                 const std::string& id, const EvalPrompt& prompt,
                                                 std::span<const Contender> contenders,
                                                 const SampleRunner::Options& options) {
  // The tokens along which all are decoded.
  const auto forced = full_cache_answer(engine, prompt.context, kDiagnosedTokens, options.cancel);
  if (!forced) return std::unexpected(forced.error());
  std::vector<DiagnosticsCell> cells;
  for (const Contender& c : contenders) cells.push_back({c.policy, c.config});
  DiagnosticsOptions diagnostics;
  diagnostics.banned = engine.tokenizer().eog_tokens();
  diagnostics.cancel = options.cancel;
  diagnostics.progress = options.progress;
  const auto report = run_diagnostics(engine, prompt.context, *forced, cells, diagnostics);
  if (!report) return std::unexpected(report.error());
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    EvalJson line = {{"task", task},
                     {"id", id},
                     {"policy", contenders[i].policy},
                     {"budget", budget_json(contenders[i].budget)}};
    for (auto& [key, value] : to_json(*report, report->rows[i], DiagnosticsDetail::All).items()) {
      if (!line.contains(key)) line[key] = std::move(value);
    }
    lines.push_back(dump_line(line));
  }
  return lines;
}

std::string diagnostics_key(const std::string& line) {
  const EvalJson json = EvalJson::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return "";
  std::string key;
  for (const char* name : {"task", "id", "policy", "budget"}) {
    const auto field = json.find(name);
    if (field == json.end()) return "";
    key += (field->is_string() ? field->get<std::string>() : field->dump()) + "\n";
  }
  return key + to_string(Protocol::WholePrompt);
}

}  // namespace qevict
