// What a run was asked to do: OUT/run.json. A run continues, and runs are merged, only where all of
// this is the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/cell.h"
#include "qevict/result.h"

namespace qevict {

struct RunSettings {
  struct TaskEntry {
    std::string name;
    int samples = 0;
    std::string digest;  // of the samples
  };
  struct PolicyEntry {
    std::string policy;
    std::optional<KvBudget> budget;
  };

  std::string model;  // file name
  std::int64_t model_bytes = 0;
  std::vector<TaskEntry> tasks;
  std::vector<PolicyEntry> policies;
  std::vector<std::pair<std::string, std::string>> cache_options;  // given beside the policies
  Protocol protocol = Protocol::WholePrompt;
  int context = 0, samples = 0;
  std::uint64_t seed = 0;
  bool chat_template = false;  // the model has one
  bool diagnostics = false;

  // Not compared.
  std::string version, isa;
};

EvalJson to_json(const RunSettings& settings);
// Reads a file that this program wrote; the error names file and field.
Result<RunSettings> read_settings(const std::string& path);

// What differs, in words: "samples: 20, was 10"; empty: nothing.
std::string differences(const RunSettings& now, const RunSettings& was);

// Cells that the run has when it is finished.
std::int64_t planned_cells(const RunSettings& settings);

}  // namespace qevict
