// The folder of an evaluation: run.json, results.jsonl or one results-I-of-N.jsonl a shard, and
// what is made of them: summary.json, report.html. With --diagnostics the same for
// diagnostics.jsonl.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "eval/cell.h"
#include "eval/result_file.h"
#include "eval/runner.h"
#include "eval/settings.h"

namespace qevict {

// Where a shard (or the whole, count 1) puts its cells.
std::string results_path(const std::string& folder, const Shard& shard);

// Makes the folder's run.json, or compares with the one that is there. Errors: BadInput when its
// settings differ (the message says what), or when there are results and `resume` is false. A shard
// also gets the cells of the folder's other files: it need not compute them.
Result<RunFiles> open_run(const std::string& folder, const Shard& shard, bool resume,
                          const RunSettings& settings);

// All cells of one run, from one folder or several. The settings must be the same, and so must
// cells that are there twice, times aside.
struct MergedRun {
  RunSettings settings;
  std::vector<CellResult> cells;  // by the run's tasks, by sample id, by the run's policies
  std::vector<std::string> diagnostics_lines;
};
Result<MergedRun> read_runs(std::span<const std::string> folders);

// Writes results.jsonl, diagnostics.jsonl and run.json of a merged run.
Status write_run(const std::string& folder, const MergedRun& run);

}  // namespace qevict
