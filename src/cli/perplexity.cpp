// qevict perplexity: how close policies stay to the full cache along a text.
#include "engine/perplexity.h"

#include <fmt/format.h>

#include <cmath>

#include "cli/commands.h"
#include "cli/inputs.h"
#include "cli/json_report.h"
#include "cli/signals.h"

namespace qevict::cli {
namespace {

struct PerplexityArgs {
  CLI::App* app = nullptr;
  CommonOptions common;
  PerplexityOptions options;
  std::string file, prompt_tokens, forced_tokens;
  bool parse_special = false;
  std::vector<std::string> policies = {"full", "qevict"};
  std::vector<std::string> budgets = {"0.2"};

  bool given(const std::string& option) const { return app->count(option) > 0; }
};

// Every policy at every budget; a policy that keeps everything has one row.
Result<std::vector<PerplexityCell>> make_cells(const PerplexityArgs& args) {
  std::vector<PerplexityCell> cells;
  for (const std::string& policy : args.policies) {
    for (const std::string& budget : args.budgets) {
      PerplexityCell cell{policy, args.common.cache};
      const Result<KvBudget> parsed = KvBudget::parse(budget);
      if (!parsed) return std::unexpected(parsed.error());
      cell.config.budget = *parsed;
      if (Status s = apply_policy(policy, cell.config); !s) return std::unexpected(s.error());
      if (Status s = cell.config.validate(); !s) return std::unexpected(s.error());
      const bool full = cell.config.policy == "full";
      if (full) cell.config.budget.value = 1.0;
      cells.push_back(std::move(cell));
      if (full) break;
    }
  }
  return cells;
}

struct Inputs {
  std::string text;
  std::optional<TokenList> prompt, forced;
};

Result<Inputs> read_inputs(const PerplexityArgs& args) {
  Inputs inputs;
  if (args.given("-f") == args.given("--prompt-tokens")) {
    return bad_input("no text, or two (command line): give -f FILE or --prompt-tokens IDS.json");
  }
  if (args.given("-f")) {
    Result<std::string> text = read_text(args.file);
    if (!text) return std::unexpected(text.error());
    inputs.text = std::move(*text);
    if (Status s = check_utf8(inputs.text, args.file); !s) return std::unexpected(s.error());
  } else {
    Result<TokenList> list = read_token_list(args.prompt_tokens);
    if (!list) return std::unexpected(list.error());
    inputs.prompt = std::move(*list);
  }
  if (args.given("--forced-tokens")) {
    Result<TokenList> list = read_token_list(args.forced_tokens);
    if (!list) return std::unexpected(list.error());
    inputs.forced = std::move(*list);
  }
  return inputs;
}

Json to_json(const PerplexityResult& r, bool kl) {
  Json line = {{"policy", r.policy},
               {"budget", r.budget.to_string()},
               {"prompt_tokens", r.prompt_tokens},
               {"scored_tokens", r.scored_tokens},
               {"ppl", r.ppl},
               {"ppl_stderr", r.ppl_stderr}};
  if (kl) {
    line["kl_mean"] = r.kl_mean;
    line["kl_p99"] = r.kl_p99;
    line["same_top1"] = r.same_top1;
  }
  line["kv_resident_bytes"] = r.kv_resident_bytes;
  line["tpot_ms"] = r.tpot_median_ms;
  return line;
}

std::string to_row(const PerplexityResult& r, bool kl) {
  std::string row =
      fmt::format("{:<24} {:>8} {:>10} {:>10.4f} +- {:<8.4f}", r.policy, r.budget.to_string(),
                  format_bytes(r.kv_resident_bytes), r.ppl, r.ppl_stderr);
  if (kl) row += fmt::format(" {:>10.3g} {:>10.3g} {:>9.3f}", r.kl_mean, r.kl_p99, r.same_top1);
  return row + fmt::format(" {:>10}\n", format_ms(r.tpot_median_ms));
}

Result<int> perplexity(PerplexityArgs& args) {
  if (Status s = finish_options(args.common); !s) return std::unexpected(s.error());
  args.policies = join_parameters(std::move(args.policies));
  const Result<std::vector<PerplexityCell>> cells = make_cells(args);
  if (!cells) return std::unexpected(cells.error());
  Result<Inputs> inputs = read_inputs(args);
  if (!inputs) return std::unexpected(inputs.error());
  const Console console(args.common.quiet);
  const auto engine = load_engine(args.common, console);
  if (!engine) return std::unexpected(engine.error());
  const Tokenizer& tokenizer = (*engine)->tokenizer();
  Result<std::vector<TokenId>> text =
      inputs->prompt ? to_tokens(*inputs->prompt, tokenizer.n_vocab())
                     : tokenizer.encode(inputs->text, true, args.parse_special);
  if (!text) return std::unexpected(text.error());
  if (inputs->forced) {
    Result<std::vector<TokenId>> forced = to_tokens(*inputs->forced, tokenizer.n_vocab());
    if (!forced) return std::unexpected(forced.error());
    args.options.forced = std::move(*forced);
    // Ids and a continuation say themselves how long they are.
    if (!args.given("--continue"))
      args.options.n_continue = static_cast<int>(args.options.forced.size());
    if (!args.given("--prompt") && inputs->prompt)
      args.options.n_prompt = static_cast<int>(text->size());
  }
  if (args.given("--own-answer")) {
    args.options.own_answer = true;
    if (!args.given("--prompt")) args.options.n_prompt = static_cast<int>(text->size());
  }
  args.options.cancel = &interrupt_flag();
  ProgressBar bar(console, "reading and decoding");
  args.options.progress = [&bar](double fraction) { bar.update(fraction); };
  const auto results = measure_perplexity(**engine, *text, *cells, args.options);
  bar.clear();
  if (!results) return std::unexpected(results.error());
  Output output;
  const bool kl = args.options.kl;
  if (!args.common.json) {
    output.write(fmt::format(
        "{:<24} {:>8} {:>10} {:>22}{} {:>10}\n", "policy", "budget", "KV", "perplexity +- stderr",
        kl ? fmt::format(" {:>10} {:>10} {:>9}", "KL mean", "KL p99", "same top") : "", "TPOT"));
  }
  for (const PerplexityResult& r : *results) {
    output.write(args.common.json ? dump_json(to_json(r, kl)) + "\n" : to_row(r, kl));
  }
  if (Status s = output.status(); !s) return std::unexpected(s.error());
  return kOk;
}

}  // namespace

void add_perplexity_command(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<PerplexityArgs>();
  CLI::App* command = app.add_subcommand(
      "perplexity", "perplexity and KL divergence from the full cache, token by token");
  args->app = command;
  const std::string group = "Text";
  command->add_option("-f,--file", args->file, "the text")->type_name("FILE")->group(group);
  command
      ->add_option("--prompt-tokens", args->prompt_tokens, "the text as a JSON array of token ids")
      ->type_name("IDS.json")
      ->group(group);
  command
      ->add_option("--forced-tokens", args->forced_tokens,
                   "decode along these tokens instead of the text's next ones")
      ->type_name("IDS.json")
      ->group(group);
  command
      ->add_option("--own-answer", args->options.n_continue,
                   "decode along the first N tokens of the full cache's own answer to the text")
      ->check(in_range(2, 1 << 24))
      ->type_name("N")
      ->group(group);
  command
      ->add_flag("--parse-special", args->parse_special,
                 "read <|im_start|> and the like in FILE as the tokens they name")
      ->group(group);
  command->add_option("--prompt", args->options.n_prompt, "tokens read before decoding [4096]")
      ->transform(with_suffix())
      ->check(in_range(1, 1 << 30))
      ->type_name("N")
      ->group(group);
  command->add_option("--continue", args->options.n_continue, "tokens decoded after them [256]")
      ->excludes("--own-answer")
      ->transform(with_suffix())
      ->check(in_range(2, 1 << 24))
      ->type_name("N")
      ->group(group);
  command
      ->add_option("--stride", args->options.stride,
                   "start again N tokens further on, to the end of the text [once]")
      ->transform(with_suffix())
      ->check(in_range(1, 1 << 30))
      ->type_name("N")
      ->group(group);
  command->add_option("--policies,--policy", args->policies, "policies [full,qevict]")
      ->delimiter(',')
      ->type_name("NAME,...");
  command->add_option("--budgets", args->budgets, "KV budgets [0.2]")
      ->delimiter(',')
      ->type_name("B,...");
  command->add_flag("--kl", args->options.kl, "also KL(full || policy), in nats");
  add_model_options(*command, args->common);
  add_cache_options(*command, args->common, "--kv-budget");
  add_json_option(*command, args->common);
  add_quiet_option(*command, args->common);
  command->footer(
      "The first continuation token is not scored: it is predicted before anything compressed was\n"
      "read. All policies are decoded side by side, their caches are in memory together.\n"
      "Example:\n  qevict perplexity -f book.txt --prompt 4K --continue 256 --kl \\\n"
      "    --policies full,qevict --budgets 0.05,0.1,0.2,0.4");
  command->callback([args, &exit_code] {
    const Result<int> code = perplexity(*args);
    exit_code = code ? *code : report_error(code.error());
  });
}

}  // namespace qevict::cli
