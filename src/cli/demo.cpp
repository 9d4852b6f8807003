// qevict demo: what compression keeps and loses, shown in seconds on the recall model that is part
// of the program.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "cli/commands.h"
#include "cli/json_report.h"
#include "cli/signals.h"
#include "cli/tier_map.h"
#include "eval/recall_model.h"
#include "eval/recall_task.h"

namespace qevict::cli {
namespace {

constexpr int kMapWidth = 72;

struct DemoArgs {
  CommonOptions common;
  RecallShape shape;
  int n_questions = 128;
  std::vector<std::string> policies;
};

// One line of the table: a policy with its parameters.
struct Row {
  std::string name;
  std::string policy;
  CacheConfig config;
  RecallScore score;
  CacheStats kv;
  std::string map;
};

Result<Row> make_row(const CacheConfig& base, const std::string& name, const std::string& policy) {
  Row row{name, policy, base, {}, {}, {}};
  if (Status s = apply_policy(policy, row.config); !s) return std::unexpected(s.error());
  if (Status s = row.config.validate(); !s) return std::unexpected(s.error());
  return row;
}

Result<std::vector<Row>> make_rows(const DemoArgs& args) {
  std::vector<std::pair<std::string, std::string>> wanted = {
      {"full cache", "full"},
      {"eviction only, 20 %", "qevict:kv_budget=0.2,quant_share=0"},
      {"qevict, 20 %", "qevict:kv_budget=0.2"},
      {"qevict+, 10 %", "qevict+:kv_budget=0.1"},
      {"qevict+, 20 %", "qevict+:kv_budget=0.2"}};
  if (!args.policies.empty()) wanted.clear();
  for (const std::string& policy : args.policies) wanted.emplace_back(policy, policy);
  std::vector<Row> rows;
  for (const auto& [name, policy] : wanted) {
    Result<Row> row = make_row(args.common.cache, name, policy);
    if (!row) return std::unexpected(row.error());
    rows.push_back(std::move(*row));
  }
  return rows;
}

// As many prompts as the questions need, each in a session of its own.
Status fill_row(Engine& engine, const DemoArgs& args, Row& row) {
  RecallShape shape = args.shape;
  while (row.score.asked < args.n_questions) {
    const RecallPrompt prompt = make_recall_prompt(shape);
    auto session = engine.create_session(row.config);
    if (!session) return std::unexpected(session.error());
    const auto score =
        ask_recall(**session, prompt, args.n_questions - row.score.asked, &interrupt_flag());
    if (!score) return std::unexpected(score.error());
    row.score += *score;
    row.kv = (*session)->kv_stats();
    row.map = tier_map((*session)->cache(), engine.hparams().n_layers - 1);
    ++shape.seed;
  }
  return {};
}

double per_second(std::int64_t n, double seconds) {
  return seconds > 0.0 ? static_cast<double>(n) / seconds : 0.0;
}

// A fact and its question in words.
std::string example(const Engine& engine, const DemoArgs& args) {
  const RecallFact fact = make_recall_prompt(args.shape).facts.front();
  const auto word = [&](TokenId token) { return engine.tokenizer().piece(token); };
  return fmt::format("the code of{}{}{} .  ...  ?{} ->{}{}", word(fact.key), word(fact.values[0]),
                     word(fact.values[1]), word(fact.key), word(fact.values[0]),
                     word(fact.values[1]));
}

std::string as_table(const Engine& engine, const DemoArgs& args, const std::vector<Row>& rows) {
  std::size_t width = 6;
  for (const Row& row : rows) width = std::max(width, row.name.size());
  std::string out = fmt::format(
      "{} tokens of facts and filler, then {} questions about facts the cache may have dropped:\n"
      "  {}\n\n",
      args.shape.n_tokens, args.n_questions, example(engine, args));
  out += fmt::format("{:<{}}  {:>8}  {:>11}  {:>10}  {:>8}  {:>12}  {:>12}\n", "policy", width,
                     "accuracy", "right", "KV bytes", "of full", "decode tok/s", "prompt tok/s");
  for (const Row& row : rows) {
    const RecallScore& s = row.score;
    out += fmt::format("{:<{}}  {:>8.3f}  {:>11}  {:>10}  {:>7.1f}%  {:>12.0f}  {:>12.0f}\n",
                       row.name, width, s.accuracy(), fmt::format("{} of {}", s.right, s.asked),
                       format_bytes(row.kv.resident_bytes),
                       100.0 * static_cast<double>(row.kv.resident_bytes) /
                           static_cast<double>(std::max<std::int64_t>(1, row.kv.full_cache_bytes)),
                       per_second(s.decode_steps, s.decode_seconds),
                       per_second(s.prompt_tokens, s.prefill_seconds));
  }
  return out;
}

std::string as_maps(const Engine& engine, const std::vector<Row>& rows, bool colour) {
  std::string out = fmt::format(
      "\nlayer {} at the end, a character for {} tokens, oldest first:\n"
      "  {} Full fp16   {} Quantized (8, 4, 3, 2: in so many bits)   {} evicted   {} newest "
      "tokens, always fp16\n",
      engine.hparams().n_layers, rows.front().config.window, kMapFull, kMapQuantized, kMapEvicted,
      kMapLocal);
  for (const Row& row : rows) {
    out += row.name + "\n";
    for (std::size_t at = 0; at < row.map.size(); at += kMapWidth) {
      const std::string part = row.map.substr(at, kMapWidth);
      out += "  " + (colour ? coloured(part) : part) + "\n";
    }
  }
  return out;
}

std::string as_json(const DemoArgs& args, const std::string& model, const std::vector<Row>& rows) {
  Json list = Json::array();
  for (const Row& row : rows) {
    list.push_back(
        {{"name", row.name},
         {"policy", row.policy},
         {"kv_budget", row.config.budget.to_string()},
         {"accuracy", row.score.accuracy()},
         {"nats_per_word", row.score.nats_per_word()},
         {"right", row.score.right},
         {"asked", row.score.asked},
         {"decode_tok_s", per_second(row.score.decode_steps, row.score.decode_seconds)},
         {"prefill_tok_s", per_second(row.score.prompt_tokens, row.score.prefill_seconds)},
         {"kv", kv_json(row.kv)},
         {"tier_map", row.map}});
  }
  return dump_json({{"model", model},
                    {"prompt_tokens", args.shape.n_tokens},
                    {"questions", args.n_questions},
                    {"filler_share", args.shape.filler_share},
                    {"dense", args.shape.dense},
                    {"seed", args.shape.seed},
                    {"rows", std::move(list)}}) +
         "\n";
}

// The built-in model, or the file that -m names.
Result<std::unique_ptr<Engine>> load_recall_engine(const DemoArgs& args) {
  EngineOptions options = args.common.engine;
  options.model_path = args.common.model;
  if (!options.model_path.empty()) return Engine::load(options);
  const Result<RecallModelFile> file = RecallModelFile::create();
  if (!file) return std::unexpected(file.error());
  options.model_path = file->path();
  return Engine::load(options);
}

Result<int> demo(DemoArgs& args) {
  if (Status s = finish_options(args.common); !s) return std::unexpected(s.error());
  Result<std::vector<Row>> rows = make_rows(args);
  if (!rows) return std::unexpected(rows.error());
  const Console console(args.common.quiet);
  const auto engine = load_recall_engine(args);
  if (!engine) return std::unexpected(engine.error());
  if (Status s = check_recall_model(**engine); !s) return std::unexpected(s.error());
  const bool built_in = args.common.model.empty();
  for (Row& row : *rows) {
    if (Status s = fill_row(**engine, args, row); !s) return std::unexpected(s.error());
  }
  Output output;
  if (args.common.json) {
    output.write(as_json(args, built_in ? "built in" : args.common.model, *rows));
  } else {
    output.write(as_table(**engine, args, *rows));
    output.write(as_maps(**engine, *rows, stdout_shows_colour()));
    console.note(
        "\nThe model (0.7 M weights) was made for this task and nothing else: it shows that the "
        "cache works,\nnot how well a method does on language models.");
  }
  if (Status s = output.status(); !s) return std::unexpected(s.error());
  return kOk;
}

void add_task_options(CLI::App& app, DemoArgs& args) {
  const std::string group = "Task";
  app.add_option("--tokens", args.shape.n_tokens, "length of the prompt [2048]")
      ->transform(with_suffix())
      ->check(in_range(kSmallestRecallPrompt, 7168))
      ->type_name("N")
      ->group(group);
  app.add_option("--questions", args.n_questions,
                 "questions, over several prompts if need be [128]")
      ->check(in_range(1, 100000))
      ->type_name("N")
      ->group(group);
  app.add_option("--filler", args.shape.filler_share, "share of the prompt without facts [0.4]")
      ->check(in_range(0.0, 0.95))
      ->type_name("X")
      ->group(group);
  app.add_flag("--dense", args.shape.dense, "facts without \"the code of\"")->group(group);
  app.add_option("-s,--seed", args.shape.seed, "another prompt [1]")->type_name("N")->group(group);
  app.add_option("--policy", args.policies, "compare these instead; repeatable")
      ->allow_extra_args(false)
      ->type_name("NAME[:key=value,...]")
      ->group(group);
}

}  // namespace

void add_demo_command(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<DemoArgs>();
  CLI::App* command = app.add_subcommand(
      "demo", "show in seconds what compression keeps and loses, on a small built-in model");
  add_task_options(*command, *args);
  command->add_option("-m,--model", args->common.model, "another file made by tools/recall_model")
      ->type_name("FILE");
  command->add_option("-t,--threads", args->common.engine.n_threads, "threads [1]")
      ->check(in_range(1, 1024))
      ->type_name("N");
  args->common.engine.n_threads = 1;  // the model is too small for more
  add_json_option(*command, args->common);
  add_quiet_option(*command, args->common);
  command->footer(
      "Example:\n  qevict demo --tokens 4096 --policy full --policy qevict:kv_budget=0.1");
  command->callback([args, &exit_code] {
    const Result<int> code = demo(*args);
    exit_code = code ? *code : report_error(code.error());
  });
}

}  // namespace qevict::cli
