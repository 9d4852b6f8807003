#include "eval/sample_diagnostics.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "eval/diagnostics_json.h"
#include "eval/diagnostics_run.h"
#include "policies/registry.h"

namespace qevict {
namespace {

// The tokens along which all are decoded.
Result<std::vector<TokenId>> answer_of_full_cache(Engine& engine, std::span<const TokenId> prompt,
                                                  const std::atomic<bool>* cancel) {
  CacheConfig full;
  full.policy = "full";
  const auto session = engine.create_session(full);
  if (!session) return std::unexpected(session.error());
  GenerateOptions generate;
  generate.n_predict =
      std::min(kDiagnosedTokens, engine.ctx_size() - static_cast<int>(prompt.size()));
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

}  // namespace

bool can_diagnose(const Contender& contender) {
  const PolicySpec* policy = find_policy(contender.config.policy);
  return policy != nullptr && policy->schedule == Schedule::EveryWindow;
}

Result<std::vector<std::string>> diagnose_sample(Engine& engine, const std::string& task,
                                                 const std::string& id, const EvalPrompt& prompt,
                                                 std::span<const Contender> contenders,
                                                 const SampleRunner::Options& options) {
  const auto forced = answer_of_full_cache(engine, prompt.context, options.cancel);
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
