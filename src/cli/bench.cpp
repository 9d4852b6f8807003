// qevict bench: how fast a policy decodes and reads prompts, as JSON lines.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>

#include "cli/commands.h"
#include "cli/json_report.h"
#include "cli/signals.h"
#include "engine/run_report.h"
#include "kernels/kernels.h"

namespace qevict::cli {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

enum class Kind { Decode, Prefill };

struct BenchArgs {
  Kind kind = Kind::Decode;
  CommonOptions common;
  std::vector<int> depths;
  std::vector<std::string> policies = {"full", "qevict"};
  int n = 0;
  bool synthetic_cache = false;
};

// Text-like ids: pseudo-random from a fixed seed, no special tokens.
std::vector<TokenId> synthetic_tokens(const Tokenizer& tokenizer, std::size_t n) {
  std::vector<TokenId> usable;
  for (TokenId id = 0; id < tokenizer.n_vocab(); ++id) {
    if (!tokenizer.is_eog(id) && !tokenizer.piece(id).empty()) usable.push_back(id);
  }
  if (usable.empty()) usable.push_back(0);
  std::mt19937 random(42);
  std::vector<TokenId> tokens(n);
  for (TokenId& id : tokens) id = usable[random() % usable.size()];
  return tokens;
}

// So that peak_rss_bytes is a cell's own: the kernel's high-water mark falls to what is resident
// now. Where the system does not allow it, the mark of the whole process is reported.
void reset_peak_rss() {
  if (std::FILE* file = std::fopen("/proc/self/clear_refs", "w")) {
    std::fputs("5", file);
    std::fclose(file);
  }
}

// One measured cell.
struct Measurement {
  std::vector<double> step_ms, prefill_ms;
  double attention_ms = 0.0;  // decode: a token; prefill: a prompt
  CacheStats kv;
};

Status read_prompt(Session& session, std::span<const TokenId> prompt, int max_new,
                   const Console& console, Measurement& m) {
  GenerateOptions options;
  options.cancel = &interrupt_flag();
  ProgressBar bar(console, fmt::format("reading {} tokens", prompt.size()));
  options.prefill_progress = bar.block_counter();
  const Clock::time_point start = Clock::now();
  const auto logits = session.prefill(prompt, max_new, options);
  if (!logits) return std::unexpected(logits.error());
  m.prefill_ms.push_back(ms_since(start));
  return {};
}

// A real prompt of `depth` tokens, a warm-up step, then n steps.
Result<Measurement> measure_decode(Engine& engine, const CacheConfig& config, int depth, int n,
                                   const Console& console) {
  auto session = engine.create_session(config);
  if (!session) return std::unexpected(session.error());
  Measurement m;
  // Depth 0 still needs a token to start from.
  const std::size_t n_prompt = static_cast<std::size_t>(std::max(1, depth));
  const auto tokens = synthetic_tokens(engine.tokenizer(), n_prompt + n + 1);
  const std::span<const TokenId> prompt(tokens.data(), n_prompt);
  if (Status s = read_prompt(**session, prompt, n + 1, console, m); !s) {
    return std::unexpected(s.error());
  }
  for (std::size_t i = n_prompt; i < tokens.size(); ++i) {
    if (interrupted_by_user())
      return interrupted("interrupted while decoding (Ctrl-C): run it again");
    const Clock::time_point start = Clock::now();
    const auto logits = (*session)->decode(tokens[i]);
    if (!logits) return std::unexpected(logits.error());
    if (i > n_prompt) {
      m.step_ms.push_back(ms_since(start));
    } else {
      static_cast<void>((*session)->attention_seconds());  // forgets prompt and warm-up
    }
  }
  m.attention_ms = 1000.0 * (*session)->attention_seconds() / n;
  m.kv = (*session)->kv_stats();
  return m;
}

// The prompt alone, n times.
Result<Measurement> measure_prefill(Engine& engine, const CacheConfig& config, int depth, int n,
                                    const Console& console) {
  Measurement m;
  const auto tokens = synthetic_tokens(engine.tokenizer(), std::max(1, depth));
  for (int i = 0; i < n; ++i) {
    auto session = engine.create_session(config);
    if (!session) return std::unexpected(session.error());
    if (Status s = read_prompt(**session, tokens, 1, console, m); !s) {
      return std::unexpected(s.error());
    }
    m.attention_ms += 1000.0 * (*session)->attention_seconds() / n;
    m.kv = (*session)->kv_stats();
  }
  return m;
}

Json quantiles(const std::vector<double>& ms) {
  return {{"min", quantile(ms, 0.0)}, {"median", quantile(ms, 0.5)}, {"p95", quantile(ms, 0.95)}};
}

Json to_json(const BenchArgs& args, const Engine& engine, const std::string& policy,
             const CacheConfig& config, int depth, const Measurement& m) {
  const bool decode = args.kind == Kind::Decode;
  const double prompt_ms = quantile(m.prefill_ms, 0.5);
  Json line = {{"bench", decode ? "decode" : "prefill"},
               {"policy", policy},
               {"ctx", depth},
               {"batch", 1},
               {"threads", engine.n_threads()}};
  if (decode) {
    line["tpot_ms"] = quantiles(m.step_ms);
  } else {
    line["ttft_ms"] = quantiles(m.prefill_ms);
  }
  line["attention_ms"] = m.attention_ms;
  line["prefill_tok_s"] = 1000.0 * std::max(1, depth) / prompt_ms;
  line["kv_bytes"] = m.kv.resident_bytes;
  line["full_cache_bytes"] = m.kv.full_cache_bytes;
  line["peak_rss_bytes"] = peak_resident_set_bytes();
  line["n"] = args.n;
  line["kv_budget"] = config.budget.to_string();
  line["isa"] = active_kernels().name;
  line["model"] = engine.model().path();
  return line;
}

Result<int> run_cells(const BenchArgs& args, Engine& engine, const Console& console) {
  Output output;
  for (const int depth : args.depths) {
    for (const std::string& policy : args.policies) {
      CacheConfig config = args.common.cache;
      if (Status s = apply_policy(policy, config); !s) return std::unexpected(s.error());
      reset_peak_rss();
      const Result<Measurement> m = args.kind == Kind::Decode
                                        ? measure_decode(engine, config, depth, args.n, console)
                                        : measure_prefill(engine, config, depth, args.n, console);
      if (!m) return std::unexpected(m.error());
      output.write(dump_json(to_json(args, engine, policy, config, depth, *m)) + "\n");
      if (Status s = output.status(); !s) return std::unexpected(s.error());
    }
  }
  return kOk;
}

// "qevict:window=16,quant_bits=4" was split at its comma, too: parameters go back to their policy.
void join_parameters(std::vector<std::string>& policies) {
  std::vector<std::string> joined;
  for (std::string& item : policies) {
    const bool parameter = item.find('=') < item.find(':');
    if (parameter && !joined.empty()) {
      joined.back() += "," + item;
    } else {
      joined.push_back(std::move(item));
    }
  }
  policies = std::move(joined);
}

// Everything that can be refused is refused before the model is loaded or the first cell runs.
Status check_cells(const BenchArgs& args) {
  for (const std::string& policy : args.policies) {
    CacheConfig config = args.common.cache;
    if (Status s = apply_policy(policy, config); !s) return s;
    if (Status s = config.validate(); !s) return s;
  }
  return {};
}

Result<int> bench(BenchArgs& args) {
  if (args.synthetic_cache) return not_available("--synthetic-cache");
  if (Status s = finish_options(args.common); !s) return std::unexpected(s.error());
  join_parameters(args.policies);
  if (Status s = check_cells(args); !s) return std::unexpected(s.error());
  const Console console(args.common.quiet);
  const auto engine = load_engine(args.common, console);
  if (!engine) return std::unexpected(engine.error());
  for (const int depth : args.depths) {
    const int needed = std::max(1, depth) + (args.kind == Kind::Decode ? args.n + 1 : 0);
    if (needed > (*engine)->ctx_size()) {
      return bad_input(
          fmt::format("depth {} needs {} tokens, the context has {} (--depths): lower it", depth,
                      needed, (*engine)->ctx_size()));
    }
  }
  return run_cells(args, **engine, console);
}

void add_kind(CLI::App& parent, Kind kind, int& exit_code) {
  auto args = std::make_shared<BenchArgs>();
  args->kind = kind;
  const bool decode = kind == Kind::Decode;
  args->depths = decode ? std::vector<int>{0, 4096} : std::vector<int>{512, 4096};
  args->n = decode ? 32 : 1;
  CLI::App* command = decode
                          ? parent.add_subcommand("decode", "time of a token at given depths")
                          : parent.add_subcommand("prefill", "time of a prompt of given lengths");
  command
      ->add_option(
          "--depths", args->depths,
          decode ? "tokens in front of the measured ones [0,4096]" : "prompt lengths [512,4096]")
      ->delimiter(',')
      ->transform(with_suffix())
      ->check(in_range(0, 1 << 30))
      ->type_name("N,...");
  command->add_option("--policies,--policy", args->policies, "policies to measure [full,qevict]")
      ->delimiter(',')
      ->type_name("NAME,...");
  command->add_option("-n", args->n, decode ? "measured steps [32]" : "repetitions [1]")
      ->check(in_range(1, 1 << 20))
      ->type_name("N");
  command->add_flag("--synthetic-cache", args->synthetic_cache, "")->group("");
  command->add_flag("--json", args->common.json, "")->group("");  // JSON lines are all there is
  add_model_options(*command, args->common);
  add_cache_options(*command, args->common);
  add_quiet_option(*command, args->common);
  command->footer(fmt::format(
      "Prints a JSON line for each depth and policy; peak_rss_bytes is the process's\n"
      "highest resident memory while that line was measured.\nExample:\n  qevict bench {} "
      "--depths 0,4K,16K --policies full,qevict --kv-budget 0.2",
      decode ? "decode" : "prefill"));
  command->callback([args, &exit_code] {
    const Result<int> code = bench(*args);
    exit_code = code ? *code : report_error(code.error());
  });
}

// Named by the contract; comes later.
void add_missing(CLI::App& parent, const std::string& name, int& exit_code) {
  CLI::App* command = parent.add_subcommand(name, "not available in this version")->group("");
  command->allow_extras();
  command->callback([name, &exit_code] {
    exit_code = report_error(not_available("qevict bench " + name).error());
  });
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("bench", "measure speed: JSON lines");
  command->require_subcommand(1);
  command->footer("Example:\n  qevict bench decode --depths 0,4K --policies full,qevict -n 32");
  add_kind(*command, Kind::Decode, exit_code);
  add_kind(*command, Kind::Prefill, exit_code);
  add_missing(*command, "batch", exit_code);
  add_missing(*command, "kernels", exit_code);
}

}  // namespace qevict::cli
