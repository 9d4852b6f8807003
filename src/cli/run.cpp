// qevict run: one prompt to text or to one JSON object.
#include <fmt/format.h>

#include <optional>

#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/inputs.h"
#include "cli/json_report.h"
#include "cli/signals.h"
#include "cli/trace_file.h"
#include "kernels/kernels.h"

namespace qevict::cli {
namespace {

struct RunArgs {
  CommonOptions common;
  CLI::App* app = nullptr;
  std::string prompt, prompt_file, prompt_tokens, input;
  bool chat = false;
  std::string system;
  std::string forced_tokens, trace;
  bool trace_scores = false;
  std::string save_cache, load_cache;

  bool given(const char* option) const { return app->count(option) > 0; }
};

// Text or token ids: what the prompt is before there is a tokenizer.
struct Prompt {
  std::string text;
  std::optional<TokenList> ids;
};

Result<Prompt> read_prompt(const RunArgs& args) {
  const int sources = static_cast<int>(args.given("-p")) + static_cast<int>(args.given("-f")) +
                      static_cast<int>(args.given("--prompt-tokens")) +
                      static_cast<int>(!args.input.empty());
  if (!args.input.empty() && args.input != "-") {
    return bad_input(
        fmt::format("unexpected argument '{}' (command line): a prompt goes behind -p, "
                    "or is read from standard input with -",
                    args.input));
  }
  if (sources == 0) {
    return bad_input("no prompt (command line): give -p TEXT, -f FILE, --prompt-tokens FILE or -");
  }
  if (sources > 1) {
    return bad_input("several prompts (command line): give one of -p, -f, --prompt-tokens and -");
  }
  Prompt prompt;
  if (args.given("--prompt-tokens")) {
    if (args.chat) {
      return bad_input("--chat needs a text (--prompt-tokens): token ids are taken as they are");
    }
    Result<TokenList> list = read_token_list(args.prompt_tokens);
    if (!list) return std::unexpected(list.error());
    prompt.ids = std::move(*list);
    return prompt;
  }
  std::string where = "--prompt";
  if (args.given("-p")) {
    prompt.text = args.prompt;
  } else {
    const std::string path = args.given("-f") ? args.prompt_file : "-";
    Result<std::string> text = read_text(path);
    if (!text) return std::unexpected(text.error());
    prompt.text = std::move(*text);
    // Editors and echo end a text with a newline that nobody meant.
    if (prompt.text.ends_with('\n')) prompt.text.pop_back();
    where = path == "-" ? "standard input" : path;
  }
  if (prompt.text.empty()) {
    return bad_input(fmt::format("the prompt is empty ({}): give at least one character", where));
  }
  if (Status s = check_utf8(prompt.text, where); !s) return std::unexpected(s.error());
  if (Status s = check_utf8(args.system, "--system"); !s) return std::unexpected(s.error());
  return prompt;
}

Result<std::vector<TokenId>> encode_prompt(const RunArgs& args, const Prompt& prompt,
                                           const Engine& engine) {
  const Tokenizer& tokenizer = engine.tokenizer();
  if (prompt.ids) return to_tokens(*prompt.ids, tokenizer.n_vocab());
  if (!args.chat) return tokenizer.encode(prompt.text, true, true);
  std::vector<ChatMessage> messages;
  if (!args.system.empty()) messages.push_back({"system", args.system});
  messages.push_back({"user", prompt.text});
  return encode_conversation(tokenizer, messages, engine.model().path());
}

// Everything that is checked or opened before the model is loaded.
struct Prepared {
  Prompt prompt;
  std::optional<TokenList> forced;
  std::unique_ptr<TraceFile> trace;
};

Result<Prepared> prepare(RunArgs& args) {
  if (args.given("--save-cache")) return not_available("--save-cache");
  if (args.given("--load-cache")) return not_available("--load-cache");
  if (Status s = finish_options(args.common); !s) return std::unexpected(s.error());
  if (args.trace_scores && args.trace.empty()) {
    return bad_input("--trace-scores has no file (command line): give --trace FILE too");
  }
  if (args.given("--system") && !args.chat) {
    return bad_input("--system needs the model's template (command line): give --chat too");
  }
  Prepared prepared;
  Result<Prompt> prompt = read_prompt(args);
  if (!prompt) return std::unexpected(prompt.error());
  prepared.prompt = std::move(*prompt);
  if (args.given("--forced-tokens")) {
    Result<TokenList> forced = read_token_list(args.forced_tokens);
    if (!forced) return std::unexpected(forced.error());
    prepared.forced = std::move(*forced);
    if (!args.given("-n")) {
      args.common.generate.n_predict = static_cast<int>(prepared.forced->ids.size());
    }
  }
  if (args.given("--trace")) {
    auto trace = TraceFile::open(args.trace, args.trace_scores);
    if (!trace) return std::unexpected(trace.error());
    prepared.trace = std::move(*trace);
  }
  return prepared;
}

Result<GenerateResult> generate(const RunArgs& args, Prepared& prepared, Engine& engine,
                                const Console& console, Output& output) {
  GenerateOptions options = args.common.generate;
  const Result<std::vector<TokenId>> tokens = encode_prompt(args, prepared.prompt, engine);
  if (!tokens) return std::unexpected(tokens.error());
  if (prepared.forced) {
    Result<std::vector<TokenId>> forced = to_tokens(*prepared.forced, engine.tokenizer().n_vocab());
    if (!forced) return std::unexpected(forced.error());
    options.forced = std::move(*forced);
  }
  auto session = engine.create_session(args.common.cache);
  if (!session) return std::unexpected(session.error());
  if (prepared.trace) {
    (*session)->set_trace([&trace = *prepared.trace](const LayerEvent& e) { trace.write(e); });
  }
  ProgressBar bar(console, "reading the prompt");
  options.prefill_progress = bar.block_counter();
  if (!args.common.json) {
    options.on_text = [&output](const std::string& text) {
      output.write(text);
      if (output.failed()) request_stop();
    };
  }
  return (*session)->generate(*tokens, options);
}

// What is printed after the text; the exit code.
Result<int> finish(const RunArgs& args, const GenerateResult& result, const RunContext& context,
                   Prepared& prepared, const Console& console, Output& output) {
  if (args.common.json) {
    output.write(dump_json(run_json(result, context)) + "\n");
  } else if (!result.text.ends_with('\n')) {
    output.write("\n");
  }
  const Status traced = prepared.trace ? prepared.trace->finish() : Status{};
  if (Status s = output.status(); !s) return std::unexpected(s.error());
  for (const std::string& warning : result.warnings) console.warn(warning);
  print_summary(result, console);
  if (!traced) return std::unexpected(traced.error());
  if (result.failure) return std::unexpected(*result.failure);
  return result.stop_reason == StopReason::Interrupted ? kInterrupted : kOk;
}

Result<int> run(RunArgs& args) {
  const Console console(args.common.quiet);
  Result<Prepared> prepared = prepare(args);
  if (!prepared) return std::unexpected(prepared.error());
  if (args.common.generate.logprobs > 0 && !args.common.json) {
    console.warn("--logprobs shows in --json only");
  }
  const auto engine = load_engine(args.common, console);
  if (!engine) return std::unexpected(engine.error());
  RunContext context{
      (*engine)->model().path(), args.common.policy_text, args.common.cache.budget.to_string(),
      active_kernels().name,     (*engine)->load_ms(),    (*engine)->n_threads(),
      (*engine)->ctx_size(),     resident_set_bytes(),    args.common.cache.fused_attention};
  Output output;
  const Result<GenerateResult> result = generate(args, *prepared, **engine, console, output);
  if (!result) return std::unexpected(result.error());
  return finish(args, *result, context, *prepared, console, output);
}

void add_prompt_options(CLI::App& app, RunArgs& args) {
  const std::string group = "Prompt";
  app.add_option("-p,--prompt", args.prompt, "the prompt")->type_name("TEXT")->group(group);
  app.add_option("-f,--file", args.prompt_file, "prompt from a file, without its last newline")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--prompt-tokens", args.prompt_tokens,
                 "prompt as a JSON array of token ids, to which nothing is added")
      ->type_name("IDS.json")
      ->group(group);
  app.add_flag("--chat", args.chat, "apply the model's chat template")->group(group);
  app.add_option("--system", args.system, "system message of the template")
      ->type_name("TEXT")
      ->group(group);
  app.add_option("input", args.input, "- reads the prompt from standard input")->type_name("-");
}

void add_output_options(CLI::App& app, RunArgs& args) {
  const std::string group = "Output";
  app.add_option("--forced-tokens", args.forced_tokens,
                 "decode along these token ids (JSON array) instead of sampling")
      ->type_name("IDS.json")
      ->group("Generation");
  app.add_option("--logprobs", args.common.generate.logprobs,
                 "also give the K most likely tokens of every step (--json)")
      ->check(in_range(0, 1 << 20))
      ->type_name("K")
      ->group(group);
  app.add_option("--trace", args.trace, "write what every routing event did, a JSON line a layer")
      ->type_name("FILE")
      ->group(group);
  app.add_flag("--trace-scores", args.trace_scores, "with the candidates' scores")->group(group);
  // Named by the contract; a clear error beats "unknown option".
  app.add_option("--save-cache", args.save_cache, "")->group("");
  app.add_option("--load-cache", args.load_cache, "")->group("");
}

}  // namespace

void add_run_command(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<RunArgs>();
  CLI::App* command = app.add_subcommand("run", "generate text for one prompt");
  args->app = command;
  add_prompt_options(*command, *args);
  add_model_options(*command, args->common);
  add_sampling_options(*command, args->common);
  add_policy_option(*command, args->common);
  add_cache_options(*command, args->common);
  add_output_options(*command, *args);
  add_json_option(*command, args->common);
  add_quiet_option(*command, args->common);
  command->footer(
      "Example:\n"
      "  qevict run -p \"Write a haiku about memory.\" --chat --kv-budget 20%\n"
      "  qevict run -f report.txt -n 200 --kv-budget 64MiB --json > result.json");
  command->callback([args, &exit_code] {
    const Result<int> code = run(*args);
    exit_code = code ? *code : report_error(code.error());
  });
}

}  // namespace qevict::cli
