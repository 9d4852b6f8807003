// An evaluation: tasks x policies x budgets, as lines in a file that a killed run continues.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "eval/cell.h"
#include "eval/result_file.h"
#include "eval/sample_run.h"
#include "eval/task.h"

namespace qevict {

// The samples of a task, its prompts' tokens included.
struct LoadedTask {
  std::string name;
  std::vector<Sample> samples;
  std::vector<EvalPrompt> prompts;  // [samples]
  // Of everything in the samples: the same data, the same digest.
  std::string digest;
  double local_share = 0.0;  // TaskSpec's
};

// Makes samples and prompts. Refused: two samples with one id, prompts that are longer than
// ctx_size with their answer.
Result<LoadedTask> load_task(const std::string& name, const Task& task, const Tokenizer& tokenizer,
                             const TaskOptions& options, Protocol protocol, int ctx_size);

// Which part of the work: every count-th sample, with all of its cells.
struct Shard {
  int index = 0, count = 1;
};
// "i/n"; i counts from 0 or from 1: n/n is 0/n.
Result<Shard> parse_shard(const std::string& text);

struct RunOptions {
  Protocol protocol = Protocol::WholePrompt;
  Shard shard;
  TaskOptions task;
  std::string model;         // for the lines
  bool diagnostics = false;  // with WholePrompt only
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(double done, double total)> progress;  // in cells
};

// Where a run's lines go, and those that are there already.
struct RunFiles {
  LineFile results;
  std::vector<CellResult> cells;
  std::optional<LineFile> diagnostics = std::nullopt;  // where they are wanted
  std::vector<std::string> diagnostics_lines = {};
};

// Runs what is missing and appends it, a sample with all of its cells at a time. The order of the
// samples is that of the tasks. An error or an interruption keeps what is in the files.
Status run_evaluation(Engine& engine, std::span<const LoadedTask> tasks,
                      std::span<const Contender> contenders, const RunOptions& options,
                      RunFiles& files);

}  // namespace qevict
