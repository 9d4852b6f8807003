// qevict eval: tasks x policies x budgets -> scores, a summary and a report.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/contenders.h"
#include "cli/json_report.h"
#include "cli/signals.h"
#include "eval/report.h"
#include "eval/run_folder.h"
#include "eval/runner.h"
#include "eval/summary.h"
#include "eval/task.h"
#include "kernels/kernels.h"

namespace qevict::cli {
namespace {

struct EvalArgs {
  CLI::App* app = nullptr;
  CommonOptions common;
  TaskOptions task;
  std::vector<std::string> tasks;
  std::vector<std::string> policies;  // none named: full and the default policy
  std::vector<std::string> budgets = {"0.2"};
  std::vector<std::string> merge;
  std::string out, shard = "0/1", protocol = "whole";
  bool resume = false, diagnostics = false;

  bool given(const std::string& option) const { return app->count(option) > 0; }
};

// What is checked before a model is loaded.
struct Plan {
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Task>> tasks;
  std::vector<Contender> contenders;
  RunOptions run;
};

Result<Plan> make_plan(EvalArgs& args) {
  Plan plan;
  if (args.tasks.empty()) return bad_input("no tasks (--tasks): name at least one");
  if (args.out.empty()) return bad_input("no folder for the results (--out): give one");
  if (Status s = finish_options(args.common); !s) return std::unexpected(s.error());
  if (args.policies.empty()) args.policies = {"full", args.common.policy_text};
  std::vector<std::string> names;
  for (const std::string& group : args.tasks) {
    for (std::string& name : expand_task(group, args.task)) names.push_back(std::move(name));
  }
  for (const std::string& name : names) {
    if (std::ranges::find(plan.names, name) != plan.names.end()) {
      return bad_input(fmt::format("task {} twice (--tasks): name it once", name));
    }
    Result<std::unique_ptr<Task>> task = make_task(name);
    if (!task) return std::unexpected(task.error());
    plan.names.push_back(name);
    plan.tasks.push_back(std::move(*task));
  }
  Result<std::vector<Contender>> contenders =
      make_contenders(args.common.cache, args.policies, args.budgets);
  if (!contenders) return std::unexpected(contenders.error());
  plan.contenders = std::move(*contenders);
  const Result<Protocol> protocol = parse_protocol(args.protocol);
  if (!protocol) return std::unexpected(protocol.error());
  const Result<Shard> shard = parse_shard(args.shard);
  if (!shard) return std::unexpected(shard.error());
  plan.run.protocol = *protocol;
  plan.run.shard = *shard;
  plan.run.task = args.task;
  plan.run.cancel = &interrupt_flag();
  plan.run.diagnostics = args.diagnostics;
  if (args.diagnostics && plan.run.protocol != Protocol::WholePrompt) {
    return bad_input("--diagnostics reads the prompt in one piece (--protocol): use whole");
  }
  if (Status s = make_folder(args.out); !s) return std::unexpected(s.error());
  return plan;
}

RunSettings make_settings(const EvalArgs& args, const Plan& plan,
                          const std::vector<LoadedTask>& loaded, const Engine& engine) {
  RunSettings settings;
  const std::filesystem::path model = engine.model().path();
  std::error_code error;
  settings.model = model.filename().string();
  settings.model_bytes = static_cast<std::int64_t>(std::filesystem::file_size(model, error));
  for (const LoadedTask& task : loaded) {
    settings.tasks.push_back({task.name, static_cast<int>(task.samples.size()), task.digest});
  }
  for (const Contender& c : plan.contenders) settings.policies.push_back({c.policy, c.budget});
  for (const auto& [option, text] : args.common.typed) {
    settings.cache_options.emplace_back(std::string(option->key), text);
  }
  settings.protocol = plan.run.protocol;
  settings.context = args.task.context_tokens;
  settings.samples = args.task.samples;
  settings.seed = args.task.seed;
  settings.chat_template = engine.tokenizer().has_chat_template();
  settings.diagnostics = args.diagnostics;
  settings.version = version_name();
  settings.isa = active_kernels().name;
  return settings;
}

// " 12/80, 3 min left" behind a progress bar.
class TimeLeft {
 public:
  std::string note(double done, double total) const {
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    std::string text = fmt::format("  {:.0f} of {:.0f}", std::floor(done), total);
    if (seconds < 3.0 || done <= 0.0) return text;
    return text + fmt::format(", {} left", in_words(seconds * (total - done) / done));
  }

 private:
  static std::string in_words(double seconds) {
    if (seconds < 60.0) return fmt::format("{:.0f} s", seconds);
    const int minutes = static_cast<int>(std::min(seconds / 60.0 + 0.5, 1e6));
    return minutes < 60 ? fmt::format("{} min", minutes)
                        : fmt::format("{} h {} min", minutes / 60, minutes % 60);
  }
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::string row_text(const ScoreRow& row) {
  const double share =
      row.full_cache_bytes > 0.0 ? 100.0 * row.kv_bytes / row.full_cache_bytes : 0.0;
  return fmt::format("  {:<32} {:>8} {:>7.1f} +- {:<5.1f} {:>5} {:>10} {:>6.1f}%{}\n", row.policy,
                     row.budget ? row.budget->to_string() : "-", 100.0 * row.score,
                     100.0 * row.stderr_of_mean, row.n,
                     format_bytes(static_cast<std::int64_t>(row.kv_bytes)), share,
                     row.over_budget > 0 ? "  over budget" : "");
}

std::string table_text(const TaskTable& table, const std::string& title) {
  std::string text =
      fmt::format("{}{}\n", title, table.full_fails ? "  (the full cache fails)" : "");
  for (const ScoreRow& row : table.rows) text += row_text(row);
  return text;
}

std::string summary_text(const Summary& summary) {
  std::string text = fmt::format("{:<34} {:>8} {:>7} {:>8} {:>5} {:>10} {:>7}\n", "task, policy",
                                 "budget", "score", "stderr", "n", "KV", "of full");
  for (const TaskTable& table : summary.tasks) text += table_text(table, table.task);
  if (summary.average) text += table_text(*summary.average, "average");
  return text;
}

Status write_results(const std::string& folder, const RunSettings& settings,
                     const std::vector<CellResult>& cells,
                     const std::vector<std::string>& diagnostics, const Console& console) {
  const Summary summary = summarise(settings, cells);
  if (Status s = write_file(folder + "/summary.json", to_json(summary).dump(2) + "\n"); !s) {
    return s;
  }
  if (Status s =
          write_file(folder + "/report.html", report_html(settings, summary, cells, diagnostics));
      !s) {
    return s;
  }
  if (summary.cells < summary.planned) {
    console.warn(fmt::format("{} of {} cells are there: the summary is of those", summary.cells,
                             summary.planned));
  }
  Output output;
  output.write(summary_text(summary));
  console.note(fmt::format("report:  {}/report.html", folder));
  return output.status();
}

Result<int> merge(const EvalArgs& args) {
  for (const char* option : {"--tasks", "--resume", "--shard"}) {
    if (args.given(option)) {
      return bad_input(fmt::format(
          "{} beside --merge (command line): results are only joined, drop it", option));
    }
  }
  const std::string folder = args.out.empty() ? args.merge.front() : args.out;
  const Console console(args.common.quiet);
  const Result<MergedRun> run = read_runs(args.merge);
  if (!run) return std::unexpected(run.error());
  if (Status s = make_folder(folder); !s) return std::unexpected(s.error());
  if (Status s = write_run(folder, *run); !s) return std::unexpected(s.error());
  if (Status s = write_results(folder, run->settings, run->cells, run->diagnostics_lines, console);
      !s) {
    return std::unexpected(s.error());
  }
  return kOk;
}

Result<std::vector<LoadedTask>> load_tasks(const Plan& plan, const Engine& engine) {
  std::vector<LoadedTask> loaded;
  for (std::size_t i = 0; i < plan.tasks.size(); ++i) {
    Result<LoadedTask> task = load_task(plan.names[i], *plan.tasks[i], engine.tokenizer(),
                                        plan.run.task, plan.run.protocol, engine.ctx_size());
    if (!task) return std::unexpected(task.error());
    loaded.push_back(std::move(*task));
  }
  return loaded;
}

Result<int> eval(EvalArgs& args) {
  if (!args.merge.empty()) return merge(args);
  Result<Plan> plan = make_plan(args);
  if (!plan) return std::unexpected(plan.error());
  const Console console(args.common.quiet);
  const auto engine = load_engine(args.common, console);
  if (!engine) return std::unexpected(engine.error());
  const Result<std::vector<LoadedTask>> loaded = load_tasks(*plan, **engine);
  if (!loaded) return std::unexpected(loaded.error());
  const RunSettings settings = make_settings(args, *plan, *loaded, **engine);
  Result<RunFiles> run = open_run(args.out, plan->run.shard, args.resume, settings);
  if (!run) return std::unexpected(run.error());
  plan->run.model = settings.model;
  ProgressBar bar(console, "evaluating");
  const TimeLeft time;
  plan->run.progress = [&](double done, double total) {
    bar.update(done / total, time.note(done, total));
  };
  const Status done = run_evaluation(**engine, *loaded, plan->contenders, plan->run, *run);
  bar.clear();
  if (!done) return std::unexpected(done.error());
  if (plan->run.shard.count > 1) {
    console.note(fmt::format("shard {} of {} is done; when all are: qevict eval --merge {}",
                             plan->run.shard.index, plan->run.shard.count, args.out));
    return kOk;
  }
  if (Status s = write_results(args.out, settings, run->cells, run->diagnostics_lines, console);
      !s) {
    return std::unexpected(s.error());
  }
  return kOk;
}

void add_what(CLI::App& app, EvalArgs& args) {
  const std::string group = "What";
  app.add_option("--tasks", args.tasks,
                 "tasks: ruler:vt, gsm8k, file:mine.jsonl, ...; ruler is all of ruler:")
      ->delimiter(',')
      ->type_name("NAME,...")
      ->group(group);
  app.add_option("--policies,--policy", args.policies, "policies [full,qevict+]")
      ->delimiter(',')
      ->type_name("NAME[:key=value,...],...")
      ->group(group);
  app.add_option("--budgets", args.budgets, "KV budgets [0.2]")
      ->delimiter(',')
      ->type_name("B,...")
      ->group(group);
  app.add_option("--context", args.task.context_tokens, "tokens of prompt and answer [4096]")
      ->transform(with_suffix())
      ->check(in_range(16, 1 << 30))
      ->type_name("N")
      ->group(group);
  app.add_option("--samples", args.task.samples, "samples a task [20]")
      ->check(in_range(1, 1 << 20))
      ->type_name("N")
      ->group(group);
  app.add_option("--seed", args.task.seed, "other samples [42]")->type_name("N")->group(group);
  app.add_option("--protocol", args.protocol,
                 "whole: compress after the whole prompt; context: before the question [whole]")
      ->type_name("whole|context")
      ->group(group);
  app.add_option("--data", args.task.data_dir, "folder of the data sets")
      ->type_name("DIR")
      ->group(group);
}

void add_how(CLI::App& app, EvalArgs& args) {
  const std::string group = "Results";
  app.add_option("--out", args.out, "folder of results.jsonl, summary.json and report.html")
      ->type_name("DIR")
      ->group(group);
  app.add_flag("--resume", args.resume, "continue what is in the folder")->group(group);
  app.add_flag("--diagnostics", args.diagnostics, "also what the cache lost and kept")
      ->group(group);
  app.add_option("--shard", args.shard, "only part i of n, to be merged later")
      ->type_name("i/n")
      ->group(group);
  app.add_option("--merge", args.merge,
                 "join the results of shards in these folders, into --out or the first")
      ->type_name("DIR...")
      ->group(group);
}

}  // namespace

void add_eval_command(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<EvalArgs>();
  CLI::App* command =
      app.add_subcommand("eval", "scores of tasks by policy and budget, with a report");
  args->app = command;
  add_what(*command, *args);
  add_how(*command, *args);
  add_model_options(*command, args->common);
  add_cache_options(*command, args->common, "--kv-budget");
  add_quiet_option(*command, args->common);
  command->footer(
      "The answers of all policies and budgets to a sample are decoded side by side: their caches\n"
      "are in memory together. docs/evaluation.md describes the files and the rules.\n"
      "Example:\n  qevict eval --tasks file:mine.jsonl --policies full,qevict+ --budgets 0.1,0.2 "
      "--out result");
  command->callback([args, &exit_code] {
    const Result<int> code = eval(*args);
    exit_code = code ? *code : report_error(code.error());
  });
}

}  // namespace qevict::cli
