// Checks of whole-model traces (format qevict-trace/1) for vectors_check.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace qevict::vectors {

struct CaseResult {
  enum class Outcome { Pass, Fail, Skip };
  std::string name;
  Outcome outcome = Outcome::Pass;
  std::string detail;  // figures, or why it failed or was skipped
};

// Runs the trace's model, found by its SHA-256 among the *.gguf files of `model_dirs`, with the
// full cache and with qevict along the trace's teacher tokens. One result a check.
std::vector<CaseResult> check_trace(const nlohmann::json& trace, const std::string& file,
                                    const std::vector<std::string>& model_dirs);

}  // namespace qevict::vectors
