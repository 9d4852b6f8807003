#include "eval/run_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "eval/sample_diagnostics.h"

namespace qevict {
namespace {

namespace fs = std::filesystem;

std::string settings_path(const std::string& folder) { return folder + "/run.json"; }

constexpr const char* kResults = "results";
constexpr const char* kDiagnostics = "diagnostics";

std::string shard_path(const std::string& folder, const char* name, const Shard& shard) {
  if (shard.count == 1) return fmt::format("{}/{}.jsonl", folder, name);
  return fmt::format("{}/{}-{}-of-{}.jsonl", folder, name, shard.index, shard.count);
}

// NAME.jsonl and those of shards, in order.
std::vector<std::string> files_of(const std::string& folder, const char* wanted) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(wanted) && name.ends_with(".jsonl")) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

bool is_empty(const std::string& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  return error || size == 0;
}

Status check_settings(const std::string& folder, const RunSettings& settings) {
  const std::string path = settings_path(folder);
  if (!fs::exists(path)) return write_file(path, to_json(settings).dump(2) + "\n");
  const Result<RunSettings> was = read_settings(path);
  if (!was) return std::unexpected(was.error());
  const std::string differs = differences(settings, *was);
  if (differs.empty()) return {};
  if (std::ranges::all_of(files_of(folder, kResults), is_empty)) {
    return write_file(path, to_json(settings).dump(2) + "\n");
  }
  return bad_input(
      fmt::format("other settings than those of the run that is there ({}): {}: give the same "
                  "ones or another --out",
                  path, differs));
}

// A cell without what differs from machine to machine.
std::string without_times(CellResult cell) {
  cell.seconds = 0.0;
  return to_line(cell);
}

// Where a cell stands in the run.
struct Order {
  std::map<std::string, std::size_t> tasks, policies;

  explicit Order(const RunSettings& settings) {
    for (const auto& task : settings.tasks) tasks.emplace(task.name, tasks.size());
    for (const auto& p : settings.policies) {
      policies.emplace(p.policy + "\n" + budget_text(p.budget), policies.size());
    }
  }
  std::size_t task(const CellResult& c) const { return at(tasks, c.task); }
  std::size_t policy(const CellResult& c) const {
    return at(policies, c.policy + "\n" + budget_text(c.budget));
  }
  static std::size_t at(const std::map<std::string, std::size_t>& places, const std::string& key) {
    const auto place = places.find(key);
    return place == places.end() ? places.size() : place->second;
  }
};

void sort_cells(const RunSettings& settings, std::vector<CellResult>& cells) {
  const Order order(settings);
  std::ranges::sort(cells, [&](const CellResult& a, const CellResult& b) {
    if (a.task != b.task) return order.task(a) < order.task(b);
    if (a.id != b.id) return a.id < b.id;
    return order.policy(a) < order.policy(b);
  });
}

// Of cells that are there twice the first stays.
Status add_cells(const std::string& file, std::map<std::string, std::size_t>& places,
                 std::vector<CellResult>& cells) {
  const Result<std::vector<std::string>> lines = read_lines(file);
  if (!lines) return std::unexpected(lines.error());
  Result<std::vector<CellResult>> read = parse_cells(*lines, file);
  if (!read) return std::unexpected(read.error());
  for (CellResult& cell : *read) {
    const auto [place, is_new] = places.emplace(cell.key(), cells.size());
    if (is_new) {
      cells.push_back(std::move(cell));
    } else if (without_times(cells[place->second]) != without_times(cell)) {
      return bad_input(
          fmt::format("task {}, sample {}, {} at budget {} is there twice with different answers "
                      "({}): remove one of the files",
                      cell.task, cell.id, cell.policy, budget_text(cell.budget), file));
    }
  }
  return {};
}

// Cells in the folder's other files, where a run goes on in other parts than it was begun in.
Status add_other_cells(const std::string& folder, const std::string& own,
                       std::vector<CellResult>& cells) {
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < cells.size(); ++i) places.emplace(cells[i].key(), i);
  for (const std::string& file : files_of(folder, kResults)) {
    if (file == own) continue;
    if (Status s = add_cells(file, places, cells); !s) return s;
  }
  return {};
}

}  // namespace

std::string results_path(const std::string& folder, const Shard& shard) {
  return shard_path(folder, kResults, shard);
}

Result<RunFiles> open_run(const std::string& folder, const Shard& shard, bool resume,
                          const RunSettings& settings) {
  const std::string path = results_path(folder, shard);
  for (const std::string& file : {path, results_path(folder, {})}) {
    if (resume || is_empty(file)) continue;
    return bad_input(
        fmt::format("results are there already ({}): continue with --resume, or choose another "
                    "--out",
                    file));
  }
  if (shard.count == 1 && is_empty(path) &&
      !std::ranges::all_of(files_of(folder, kResults), is_empty)) {
    return bad_input(
        fmt::format("results of shards are there ({}): join them with --merge, or choose another "
                    "--out",
                    folder));
  }
  if (Status s = check_settings(folder, settings); !s) return std::unexpected(s.error());
  std::vector<std::string> lines;
  Result<LineFile> file = LineFile::open(path, lines);
  if (!file) return std::unexpected(file.error());
  Result<std::vector<CellResult>> stored = parse_cells(lines, path);
  if (!stored) return std::unexpected(stored.error());
  RunFiles files{std::move(*file), std::move(*stored)};
  if (shard.count > 1) {
    if (Status s = add_other_cells(folder, path, files.cells); !s)
      return std::unexpected(s.error());
  }
  if (!settings.diagnostics) return files;
  Result<LineFile> diagnostics =
      LineFile::open(shard_path(folder, kDiagnostics, shard), files.diagnostics_lines);
  if (!diagnostics) return std::unexpected(diagnostics.error());
  files.diagnostics.emplace(std::move(*diagnostics));
  return files;
}

Result<MergedRun> read_runs(std::span<const std::string> folders) {
  MergedRun run;
  std::map<std::string, std::size_t> places;
  std::set<std::string> diagnosed;
  for (const std::string& folder : folders) {
    Result<RunSettings> settings = read_settings(settings_path(folder));
    if (!settings) return std::unexpected(settings.error());
    if (&folder == &folders.front()) {
      run.settings = std::move(*settings);
    } else if (const std::string differs = differences(*settings, run.settings); !differs.empty()) {
      return bad_input(fmt::format("not the settings of {} ({}): {}: merge parts of one run only",
                                   settings_path(folders.front()), settings_path(folder), differs));
    }
    for (const std::string& file : files_of(folder, kResults)) {
      if (Status s = add_cells(file, places, run.cells); !s) return std::unexpected(s.error());
    }
    for (const std::string& file : files_of(folder, kDiagnostics)) {
      const Result<std::vector<std::string>> lines = read_lines(file);
      if (!lines) return std::unexpected(lines.error());
      for (const std::string& line : *lines) {
        if (diagnosed.insert(diagnostics_key(line)).second) run.diagnostics_lines.push_back(line);
      }
    }
  }
  sort_cells(run.settings, run.cells);
  return run;
}

Status write_run(const std::string& folder, const MergedRun& run) {
  // Holds the lock of a run that might be writing there.
  std::vector<std::string> stored;
  const Result<LineFile> lock = LineFile::open(results_path(folder, {}), stored);
  if (!lock) return std::unexpected(lock.error());
  std::string lines;
  for (const CellResult& cell : run.cells) lines += to_line(cell) + "\n";
  if (Status s = write_file(results_path(folder, {}), lines); !s) return s;
  if (run.settings.diagnostics) {
    lines.clear();
    for (const std::string& line : run.diagnostics_lines) lines += line + "\n";
    if (Status s = write_file(shard_path(folder, kDiagnostics, {}), lines); !s) return s;
  }
  return write_file(settings_path(folder), to_json(run.settings).dump(2) + "\n");
}

}  // namespace qevict
