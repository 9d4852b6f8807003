// qevict info: what a model is, what its cache costs, what a budget holds.
#include <fmt/format.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/json_report.h"
#include "kv/budget.h"
#include "model/model_info.h"

namespace qevict::cli {
namespace {

struct InfoArgs {
  CommonOptions common;
  std::string model;
  std::vector<int> contexts;
  std::vector<std::string> budgets = {"0.05", "0.1", "0.2", "0.4"};
};

// What a budget holds of a prompt of `context` tokens; windows are per layer.
struct Row {
  int context = 0;
  std::string budget;
  std::int64_t full_cache_bytes = 0;
  BudgetPlan plan;
  std::int64_t windows = 0;  // that may be ranked
  double evicted = 0.0;      // share of them
};

// fp16 K and V of one token in all layers.
std::int64_t kv_bytes_per_token(const HParams& hp) {
  return static_cast<std::int64_t>(make_geometry(hp, {}).token_bytes()) * hp.n_layers;
}

Result<Row> make_row(const HParams& hp, CacheConfig config, int context,
                     const std::string& budget) {
  const Result<KvBudget> parsed = KvBudget::parse(budget);
  if (!parsed) return std::unexpected(parsed.error());
  config.budget = *parsed;
  const Geometry g = make_geometry(hp, config);
  const Result<BudgetPlan> plan = solve_budget(g, hp.n_layers, config, context, 0);
  if (!plan) return std::unexpected(plan.error());
  Row row{context, budget, kv_bytes_per_token(hp) * context, *plan, 0, 0.0};
  row.windows =
      evictable_windows(context, plan->n_sink, plan->n_local, g.window, config.local_rule);
  const std::int64_t held = plan->quota.n_full + plan->quota.n_quantized;
  if (row.windows > 0 && !plan->uncompressed) {
    row.evicted = static_cast<double>(std::max<std::int64_t>(0, row.windows - held)) /
                  static_cast<double>(row.windows);
  }
  return row;
}

std::string heading(const HParams& hp, const std::string& path) {
  std::string out;
  const auto line = [&](const char* name, const std::string& value) {
    out += fmt::format("{:<14}{}\n", name, value);
  };
  line("file", path);
  line("name", hp.name);
  line("architecture", hp.arch);
  line("quantisation", hp.file_type);
  line("parameters", fmt::format("{:.1f} M, {} of weights", static_cast<double>(hp.n_params) / 1e6,
                                 format_bytes(hp.weight_bytes)));
  line("layers", std::to_string(hp.n_layers));
  line("heads",
       fmt::format("{} query, {} KV, dimension {}", hp.n_heads, hp.n_kv_heads, hp.head_dim));
  line("context", std::to_string(hp.n_ctx_train));
  line("KV cache", fmt::format("{} bytes a token (fp16)", kv_bytes_per_token(hp)));
  return out;
}

std::string as_table(const HParams& hp, const std::string& path, const std::vector<Row>& rows) {
  std::string out = heading(hp, path);
  out += fmt::format("\n{:>9}  {:>8}  {:>11}  {:>11}  {:>9}  {:>9}  {:>8}\n", "context", "budget",
                     "full cache", "held", "K_f", "K_q", "evicted");
  for (const Row& r : rows) {
    const std::string mark = r.plan.raised ? "*" : "";
    if (r.plan.uncompressed) {
      out +=
          fmt::format("{:>9}  {:>8}  {:>11}  {:>11}  nothing is compressed\n", r.context, r.budget,
                      format_bytes(r.full_cache_bytes), format_bytes(r.full_cache_bytes));
      continue;
    }
    out += fmt::format("{:>9}  {:>8}  {:>11}  {:>11}  {:>9}  {:>9}  {:>7.1f}%\n", r.context,
                       r.budget + mark, format_bytes(r.full_cache_bytes),
                       format_bytes(r.plan.budget_bytes), r.plan.quota.n_full,
                       r.plan.quota.n_quantized, 100.0 * r.evicted);
  }
  out +=
      "K_f, K_q: windows of a layer in Full (fp16) and Quantized with --policy qevict; evicted: "
      "share\n"
      "of the history. qevict+ fills the same bytes with windows of 2 to 8 bits, by the prompt.\n";
  if (std::ranges::any_of(rows, [](const Row& r) { return r.plan.raised; })) {
    out += "* below the smallest budget for this context: raised to it\n";
  }
  return out;
}

std::string as_json(const HParams& hp, const std::string& path, const std::vector<Row>& rows) {
  Json json = {{"model", path},
               {"name", hp.name},
               {"architecture", hp.arch},
               {"quantisation", hp.file_type},
               {"parameters", hp.n_params},
               {"weight_bytes", hp.weight_bytes},
               {"layers", hp.n_layers},
               {"heads", hp.n_heads},
               {"kv_heads", hp.n_kv_heads},
               {"head_dim", hp.head_dim},
               {"embedding", hp.n_embd},
               {"vocabulary", hp.n_vocab},
               {"context", hp.n_ctx_train},
               {"kv_bytes_per_token", kv_bytes_per_token(hp)}};
  Json list = Json::array();
  for (const Row& r : rows) {
    list.push_back({{"context", r.context},
                    {"kv_budget", r.budget},
                    {"full_cache_bytes", r.full_cache_bytes},
                    {"budget_bytes", r.plan.budget_bytes},
                    {"budget_tokens", r.plan.total_tokens},
                    {"budget_raised", r.plan.raised},
                    {"uncompressed", r.plan.uncompressed},
                    {"windows",
                     {{"history", r.windows},
                      {"full", r.plan.quota.n_full},
                      {"quantized", r.plan.quota.n_quantized}}},
                    {"evicted_share", r.evicted}});
  }
  json["budgets"] = std::move(list);
  return dump_json(json) + "\n";
}

// The usual lengths, as far as the model was trained for them.
std::vector<int> default_contexts(const HParams& hp) {
  std::vector<int> contexts;
  for (const int n : {4096, 16384, 32768}) {
    if (n <= hp.n_ctx_train) contexts.push_back(n);
  }
  if (contexts.empty()) contexts.push_back(hp.n_ctx_train);
  return contexts;
}

Result<int> info(InfoArgs& args) {
  if (Status s = finish_options(args.common); !s) return std::unexpected(s.error());
  const Result<std::string> path = find_model(args.model);
  if (!path) return std::unexpected(path.error());
  const Result<HParams> hparams = read_model_info(*path);
  if (!hparams) return std::unexpected(hparams.error());
  const HParams& hp = *hparams;
  std::vector<Row> rows;
  for (const int context : args.contexts.empty() ? default_contexts(hp) : args.contexts) {
    for (const std::string& budget : args.budgets) {
      Result<Row> row = make_row(hp, args.common.cache, context, budget);
      if (!row) return std::unexpected(row.error());
      rows.push_back(std::move(*row));
    }
  }
  Output output;
  output.write(args.common.json ? as_json(hp, *path, rows) : as_table(hp, *path, rows));
  if (Status s = output.status(); !s) return std::unexpected(s.error());
  return kOk;
}

}  // namespace

void add_info_command(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<InfoArgs>();
  CLI::App* command =
      app.add_subcommand("info", "show a model and what its cache holds at given budgets");
  command->add_option("model", args->model, "GGUF file or known name [the default model]")
      ->type_name("MODEL");
  command->add_option("-m,--model", args->model, "the same")->type_name("MODEL")->group("");
  command->add_option("-c,--ctx", args->contexts, "context lengths, such as 4K,32K [4K,16K,32K]")
      ->delimiter(',')
      ->transform(with_suffix())
      ->check(in_range(1, 1 << 30))
      ->type_name("N,...");
  command->add_option("--kv-budget", args->budgets, "budgets to compare [0.05,0.1,0.2,0.4]")
      ->delimiter(',')
      ->type_name("BUDGET,...");
  add_cache_options(*command, args->common, "--kv-budget");
  add_json_option(*command, args->common);
  add_quiet_option(*command, args->common);
  command->footer("Example:\n  qevict info model.gguf --ctx 8K,32K --kv-budget 10%,512MiB");
  command->callback([args, &exit_code] {
    const Result<int> code = info(*args);
    exit_code = code ? *code : report_error(code.error());
  });
}

}  // namespace qevict::cli
