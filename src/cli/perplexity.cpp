// qevict perplexity: how close policies stay to the full cache along a text.
#include "engine/perplexity.h"

#include <fmt/format.h>

#include <optional>

#include "cli/commands.h"
#include "cli/contenders.h"
#include "cli/diagnostics_table.h"
#include "cli/inputs.h"
#include "cli/perplexity_summary.h"
#include "cli/signals.h"

namespace qevict::cli {
namespace {

struct PerplexityArgs {
  CLI::App* app = nullptr;
  CommonOptions common;
  PerplexityOptions options;
  std::vector<std::string> files, prompt_tokens, forced_tokens;
  bool parse_special = false, diagnostics = false, details = false;
  std::vector<std::string> policies;  // none named: full and the default policy
  std::vector<std::string> budgets = {"0.2"};

  bool given(const std::string& option) const { return app->count(option) > 0; }
};

std::vector<PerplexityCell> make_cells(const std::vector<Contender>& contenders) {
  std::vector<PerplexityCell> cells;
  for (const Contender& c : contenders) cells.push_back({c.policy, c.config});
  return cells;
}

// What --diagnostics compares: the policies that were named, without the full cache, which they are
// held against; else the paper's variants.
Result<std::vector<DiagnosticsCell>> diagnostics_cells(const PerplexityArgs& args,
                                                       const std::vector<Contender>& contenders) {
  std::vector<DiagnosticsCell> cells;
  if (args.given("--policies")) {
    for (const Contender& c : contenders) {
      if (c.config.policy != "full") cells.push_back({c.policy, c.config});
    }
    return cells;
  }
  for (const std::string& text : args.budgets) {
    const Result<KvBudget> budget = KvBudget::parse(text);
    if (!budget) return std::unexpected(budget.error());
    CacheConfig base = args.common.cache;
    base.budget = *budget;
    for (DiagnosticsCell& cell : paper_variants(base)) cells.push_back(std::move(cell));
  }
  return cells;
}

// A prompt before there is a tokenizer.
struct Input {
  std::string name;  // its file
  std::string text;
  std::optional<TokenList> tokens, forced;
};

Result<Input> read_input(const std::string& file, bool is_text) {
  Input input{file, {}, {}, {}};
  if (!is_text) {
    Result<TokenList> list = read_token_list(file);
    if (!list) return std::unexpected(list.error());
    input.tokens = std::move(*list);
    return input;
  }
  Result<std::string> text = read_text(file);
  if (!text) return std::unexpected(text.error());
  input.text = std::move(*text);
  if (Status s = check_utf8(input.text, file); !s) return std::unexpected(s.error());
  return input;
}

Result<std::vector<Input>> read_inputs(const PerplexityArgs& args) {
  const bool is_text = args.given("-f");
  if (is_text == args.given("--prompt-tokens")) {
    return bad_input("no text, or two (command line): give -f FILE or --prompt-tokens IDS.json");
  }
  std::vector<Input> inputs;
  for (const std::string& file : is_text ? args.files : args.prompt_tokens) {
    Result<Input> input = read_input(file, is_text);
    if (!input) return std::unexpected(input.error());
    inputs.push_back(std::move(*input));
  }
  if (args.forced_tokens.empty()) return inputs;
  if (args.forced_tokens.size() != inputs.size()) {
    return bad_input(
        fmt::format("{} files of forced tokens for {} prompts (--forced-tokens): give one each",
                    args.forced_tokens.size(), inputs.size()));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Result<TokenList> list = read_token_list(args.forced_tokens[i]);
    if (!list) return std::unexpected(list.error());
    inputs[i].forced = std::move(*list);
  }
  return inputs;
}

// The tokens of a prompt, and the options for it.
struct Prompt {
  std::vector<TokenId> tokens;
  PerplexityOptions options;
};

Result<Prompt> make_prompt(const PerplexityArgs& args, const Input& input,
                           const Tokenizer& tokenizer) {
  Prompt prompt{{}, args.options};
  Result<std::vector<TokenId>> tokens =
      input.tokens ? to_tokens(*input.tokens, tokenizer.n_vocab())
                   : tokenizer.encode(input.text, true, args.parse_special);
  if (!tokens) return std::unexpected(tokens.error());
  prompt.tokens = std::move(*tokens);
  if (args.given("--own-answer")) {
    prompt.options.own_answer = true;
    if (!args.given("--prompt")) prompt.options.n_prompt = static_cast<int>(prompt.tokens.size());
  }
  if (!input.forced) return prompt;
  Result<std::vector<TokenId>> forced = to_tokens(*input.forced, tokenizer.n_vocab());
  if (!forced) return std::unexpected(forced.error());
  prompt.options.forced = std::move(*forced);
  // Ids and a continuation say themselves how long they are.
  if (!args.given("--continue"))
    prompt.options.n_continue = static_cast<int>(prompt.options.forced.size());
  if (!args.given("--prompt") && input.tokens)
    prompt.options.n_prompt = static_cast<int>(prompt.tokens.size());
  return prompt;
}

void write_results(const PerplexityArgs& args, const std::string& prompt, bool named,
                   const std::vector<PerplexityResult>& results, Output& output) {
  const bool kl = args.options.kl;
  if (args.common.json) {
    for (const PerplexityResult& r : results) {
      output.write(dump_json(perplexity_json(prompt, r, kl)) + "\n");
    }
    return;
  }
  if (named) output.write(prompt + "\n");
  output.write(perplexity_header(kl));
  for (const PerplexityResult& r : results) output.write(perplexity_row(r, kl));
}

void write_means(const PerplexityArgs& args, const std::vector<Contender>& contenders,
                 const std::vector<std::vector<PerplexityResult>>& results, Output& output) {
  const bool kl = args.options.kl;
  const int first = perplexity_reference(contenders);
  const std::string reference = first < 0 ? "" : contenders[first].policy;
  const std::vector<PerplexityMean> means = perplexity_means(contenders, results);
  if (!args.common.json) {
    output.write(fmt::format(
        "geometric mean of {} prompts{}\n", results.size(),
        kl && first >= 0 ? fmt::format("; KL as a multiple of {}'s (95 % interval)", reference)
                         : std::string()));
  }
  for (std::size_t i = 0; i < means.size(); ++i) {
    output.write(args.common.json
                     ? dump_json(mean_json(contenders[i], means[i], reference, kl)) + "\n"
                     : mean_row(contenders[i], means[i], kl));
  }
}

Status diagnose(Engine& engine, const PerplexityArgs& args, const std::vector<Input>& inputs,
                const std::vector<Contender>& contenders, const Console& console) {
  Result<std::vector<DiagnosticsCell>> cells = diagnostics_cells(args, contenders);
  if (!cells) return std::unexpected(cells.error());
  DiagnosticsRequest request{"", std::move(*cells), args.common.json, args.details};
  Output output;
  for (const Input& input : inputs) {
    const Result<Prompt> prompt = make_prompt(args, input, engine.tokenizer());
    if (!prompt) return std::unexpected(prompt.error());
    request.prompt = input.name;
    if (Status s =
            print_diagnostics(engine, prompt->tokens, request, prompt->options, console, output);
        !s) {
      return s;
    }
  }
  return output.status();
}

Result<int> perplexity(PerplexityArgs& args) {
  if (Status s = finish_options(args.common); !s) return std::unexpected(s.error());
  if (args.policies.empty()) args.policies = {"full", args.common.policy_text};
  const Result<std::vector<Contender>> contenders =
      make_contenders(args.common.cache, args.policies, args.budgets);
  if (!contenders) return std::unexpected(contenders.error());
  const std::vector<PerplexityCell> cells = make_cells(*contenders);
  const Result<std::vector<Input>> inputs = read_inputs(args);
  if (!inputs) return std::unexpected(inputs.error());
  const Console console(args.common.quiet);
  const auto engine = load_engine(args.common, console);
  if (!engine) return std::unexpected(engine.error());
  args.options.cancel = &interrupt_flag();
  if (args.diagnostics) {
    if (Status s = diagnose(**engine, args, *inputs, *contenders, console); !s) {
      return std::unexpected(s.error());
    }
    return kOk;
  }
  Output output;
  ProgressBar bar(console, "reading and decoding");
  const auto n = static_cast<double>(inputs->size());
  std::vector<std::vector<PerplexityResult>> all;
  for (const Input& input : *inputs) {
    Result<Prompt> prompt = make_prompt(args, input, (*engine)->tokenizer());
    if (!prompt) return std::unexpected(prompt.error());
    prompt->options.progress = [&](double fraction) {
      bar.update((static_cast<double>(all.size()) + fraction) / n);
    };
    auto results = measure_perplexity(**engine, prompt->tokens, cells, prompt->options);
    bar.clear();
    if (!results) return std::unexpected(results.error());
    write_results(args, input.name, inputs->size() > 1, *results, output);
    all.push_back(std::move(*results));
  }
  if (all.size() > 1) write_means(args, *contenders, all, output);
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
  command
      ->add_option("-f,--file", args->files, "the text; several: one after the other, then means")
      ->type_name("FILE...")
      ->group(group);
  command
      ->add_option("--prompt-tokens", args->prompt_tokens,
                   "the text as a JSON array of token ids; several, too")
      ->type_name("IDS.json...")
      ->group(group);
  command
      ->add_option("--forced-tokens", args->forced_tokens,
                   "decode along these tokens instead of the text's next ones; one file a text")
      ->type_name("IDS.json...")
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
  command->add_option("--policies,--policy", args->policies, "policies [full,qevict+]")
      ->delimiter(',')
      ->type_name("NAME,...");
  command->add_option("--budgets", args->budgets, "KV budgets [0.2]")
      ->delimiter(',')
      ->type_name("B,...");
  command->add_flag("--kl", args->options.kl, "also KL(full || policy), in nats");
  command->add_flag("--diagnostics", args->diagnostics,
                    "what policies lose of the full cache's attention [the paper's variants]");
  command->add_flag("--details", args->details,
                    "with --diagnostics --json: also by event, layer, head and step");
  add_model_options(*command, args->common);
  add_cache_options(*command, args->common, "--kv-budget");
  add_json_option(*command, args->common);
  add_quiet_option(*command, args->common);
  command->footer(
      "The first continuation token is not scored: it is predicted before anything compressed was\n"
      "read. All policies are decoded side by side, their caches are in memory together.\n"
      "Example:\n  qevict perplexity -f book.txt --prompt 4K --continue 256 --kl \\\n"
      "    --policies full,qevict+ --budgets 0.05,0.1,0.2,0.4");
  command->callback([args, &exit_code] {
    const Result<int> code = perplexity(*args);
    exit_code = code ? *code : report_error(code.error());
  });
}

}  // namespace qevict::cli
