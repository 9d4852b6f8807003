// The commands of the program. Each adds its subcommand; when it was chosen, its exit code is left
// in `exit_code`.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/options.h"
#include "cli/terminal.h"
#include "engine/engine.h"
#include "qevict/result.h"

namespace qevict::cli {

void add_run_command(CLI::App& app, int& exit_code);
void add_chat_command(CLI::App& app, int& exit_code);
void add_info_command(CLI::App& app, int& exit_code);
void add_pull_command(CLI::App& app, int& exit_code);
void add_policies_command(CLI::App& app, int& exit_code);
void add_bench_command(CLI::App& app, int& exit_code);
void add_bench_kernels(CLI::App& bench, int& exit_code);  // a subcommand of `bench`
void add_perplexity_command(CLI::App& app, int& exit_code);
void add_demo_command(CLI::App& app, int& exit_code);
void add_eval_command(CLI::App& app, int& exit_code);

// The file of a model's name or path; a known name that was not fetched yet is an error that says
// so.
Result<std::string> find_model(const std::string& name_or_path);
// Loads the model that the options name, with a progress bar.
Result<std::unique_ptr<Engine>> load_engine(const CommonOptions& options, const Console& console);

// For `qevict --version`.
std::string version_text();
// "0.1.0 (COMMIT)".
std::string version_name();

// The summary after a run: tokens, times, cache.
void print_summary(const GenerateResult& result, const Console& console);

}  // namespace qevict::cli
