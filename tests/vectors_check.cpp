// vectors_check [--models DIR]... PATH...: checks golden vector files (or all *.json of a folder).
//
// One line a case: name, pass, FAIL or skip, and why. The last line counts them. Exit code 1 when a
// case failed or none was found, 2 on wrong usage.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "vectors_peers.h"
#include "vectors_traces.h"
#include "vectors_units.h"

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using qevict::vectors::CaseResult;
using Outcome = CaseResult::Outcome;

struct Totals {
  int passed = 0, failed = 0, skipped = 0;
};

void report(const CaseResult& result, Totals& totals) {
  const char* word = "pass";
  switch (result.outcome) {
    case Outcome::Pass:
      ++totals.passed;
      break;
    case Outcome::Fail:
      ++totals.failed;
      word = "FAIL";
      break;
    case Outcome::Skip:
      ++totals.skipped;
      word = "skip";
      break;
  }
  const char* separator = result.detail.empty() ? "" : ": ";
  std::printf("%s %s%s%s\n", result.name.c_str(), word, separator, result.detail.c_str());
  std::fflush(stdout);
}

CaseResult run_unit(const json& test_case, const std::string& file) {
  CaseResult result;
  result.name = file;
  try {
    const auto op = test_case.at("op").get<std::string>();
    result.name = file + "/" + op + "/" + test_case.at("name").get<std::string>();
    const auto unit = qevict::vectors::find_unit_check(op);
    if (unit == nullptr) return {result.name, Outcome::Fail, "unknown op '" + op + "'"};
    qevict::vectors::Check check;
    unit(test_case, check);
    result.outcome = check.ok() ? Outcome::Pass : Outcome::Fail;
    result.detail = check.detail();
  } catch (const std::exception& e) {
    result.outcome = Outcome::Fail;
    result.detail = e.what();
  }
  return result;
}

CaseResult run_peer(const json& file, const std::string& name) {
  CaseResult result;
  result.name = name;
  try {
    const auto op = file.at("op").get<std::string>();
    result.name = name + "/" + op;
    if (const std::string reason = qevict::vectors::peer_skip_reason(op); !reason.empty()) {
      return {result.name, Outcome::Skip, reason};
    }
    const auto peer = qevict::vectors::find_peer_check(op);
    if (peer == nullptr) return {result.name, Outcome::Fail, "unknown op '" + op + "'"};
    qevict::vectors::Check check;
    peer(file, check);
    result.outcome = check.ok() ? Outcome::Pass : Outcome::Fail;
    result.detail = check.detail();
  } catch (const std::exception& e) {
    result.outcome = Outcome::Fail;
    result.detail = e.what();
  }
  return result;
}

void run_file(const fs::path& path, const std::vector<std::string>& models, Totals& totals) {
  const std::string name = path.filename().string();
  try {
    std::ifstream in(path);
    if (!in) return report({name, Outcome::Fail, "cannot be read"}, totals);
    const json file = json::parse(in);
    if (!file.contains("format") && file.contains("op")) {
      return report(run_peer(file, name), totals);
    }
    const auto format = file.at("format").get<std::string>();
    if (format == "qevict-vectors/1") {
      for (const json& test_case : file.at("cases")) report(run_unit(test_case, name), totals);
    } else if (format == "qevict-trace/1") {
      for (const CaseResult& r : qevict::vectors::check_trace(file, name, models)) {
        report(r, totals);
      }
    } else {
      report({name, Outcome::Fail, "unknown format '" + format + "'"}, totals);
    }
  } catch (const std::exception& e) {
    report({name, Outcome::Fail, e.what()}, totals);
  }
}

std::vector<fs::path> files_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<fs::path> files;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".json") files.push_back(it->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> models;
  std::vector<fs::path> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--models" && i + 1 < argc) {
      models.emplace_back(argv[++i]);
    } else if (arg.starts_with("-")) {
      paths.clear();
      break;
    } else {
      paths.emplace_back(arg);
    }
  }
  if (paths.empty()) {
    std::fprintf(stderr, "usage: vectors_check [--models DIR]... PATH...\n");
    return 2;
  }
  Totals totals;
  for (const fs::path& path : paths) {
    for (const fs::path& file : files_of(path)) run_file(file, models, totals);
  }
  std::printf("%d passed, %d failed", totals.passed, totals.failed);
  if (totals.skipped > 0) std::printf(", %d skipped", totals.skipped);
  std::printf("\n");
  return totals.failed > 0 || totals.passed + totals.skipped == 0 ? 1 : 0;
}
