// qevict bench: how fast a policy decodes and reads prompts, as JSON lines.
#include "cli/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

namespace qevict::cli {
namespace {

// What sets the kinds apart; the rest of their options is common.
struct KindInfo {
  BenchKind kind;
  const char* name;
  const char* help;
  const char* example;
  Result<Json> (*measure)(const BenchArgs&, const BenchCell&, Engine&, const Console&);
};
constexpr KindInfo kKinds[] = {
    {BenchKind::Decode, "decode", "time of a token at given depths",
     "--depths 0,4K,16K --policies full,qevict+ --kv-budget 0.2", bench_decode},
    {BenchKind::Prefill, "prefill", "time of a prompt of given lengths",
     "--depths 512,4K --policies full,qevict+ --kv-budget 0.2", bench_prefill},
    {BenchKind::Batch, "batch", "many sequences decoded together",
     "--batch 32 --prompt 256 --gen 1024 --policies full,qevict+", bench_batch},
};

const KindInfo& info(BenchKind kind) { return *std::ranges::find(kKinds, kind, &KindInfo::kind); }

// So that peak_rss_bytes is a cell's own: the kernel's high-water mark falls to what is resident
// now. Where the system does not allow it, the mark of the whole process is reported.
void reset_peak_rss() {
  if (std::FILE* file = std::fopen("/proc/self/clear_refs", "w")) {
    std::fputs("5", file);
    std::fclose(file);
  }
}

Result<int> run_cells(const BenchArgs& args, Engine& engine, const Console& console) {
  Output output;
  const std::vector<int> single = {1};
  for (const int batch : args.kind == BenchKind::Batch ? args.batches : single) {
    for (const int depth : args.depths) {
      for (const std::string& policy : args.policies) {
        BenchCell cell{policy, args.common.cache, depth, batch};
        if (Status s = apply_policy(policy, cell.config); !s) return std::unexpected(s.error());
        reset_peak_rss();
        const Result<Json> line = info(args.kind).measure(args, cell, engine, console);
        if (!line) return std::unexpected(line.error());
        output.write(dump_json(*line) + "\n");
        if (Status s = output.status(); !s) return std::unexpected(s.error());
      }
    }
  }
  return kOk;
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

// Tokens of context that a cell of this depth needs.
int tokens_needed(const BenchArgs& args, int depth) {
  switch (args.kind) {
    case BenchKind::Decode:
      return std::max(1, depth) + args.n + 1;
    case BenchKind::Prefill:
      return std::max(1, depth);
    case BenchKind::Batch:
      return depth + args.n;
  }
  return 0;
}

// Refuses what the context cannot hold. "32K" of a context of 32K is as deep as the measured steps
// allow.
Status fit_depths(BenchArgs& args, const Engine& engine, const Console& console) {
  for (int& depth : args.depths) {
    const int needed = tokens_needed(args, depth);
    const int too_many = needed - engine.ctx_size();
    if (too_many <= 0) continue;
    const bool lowered = args.kind == BenchKind::Decode && depth <= engine.ctx_size();
    if (!lowered || depth <= too_many) {
      return bad_input(fmt::format("depth {} needs {} tokens, the context has {} ({}): lower it",
                                   depth, needed, engine.ctx_size(),
                                   args.kind == BenchKind::Batch ? "--prompt, --gen" : "--depths"));
    }
    console.warn(fmt::format("depth {} leaves no room for {} steps in the context of {}: using {}",
                             depth, args.n + 1, engine.ctx_size(), depth - too_many));
    depth -= too_many;
  }
  return {};
}

Result<int> bench(BenchArgs& args) {
  if (Status s = finish_options(args.common); !s) return std::unexpected(s.error());
  if (args.policies.empty()) args.policies = {"full", args.common.policy_text};
  args.policies = join_parameters(std::move(args.policies));
  if (Status s = check_cells(args); !s) return std::unexpected(s.error());
  const Console console(args.common.quiet);
  const auto engine = load_engine(args.common, console);
  if (!engine) return std::unexpected(engine.error());
  if (Status s = fit_depths(args, **engine, console); !s) return std::unexpected(s.error());
  return run_cells(args, **engine, console);
}

void add_depth_options(CLI::App& command, BenchArgs& args) {
  const bool decode = args.kind == BenchKind::Decode;
  args.depths = decode ? std::vector<int>{0, 4096} : std::vector<int>{512, 4096};
  args.n = decode ? 32 : 1;
  command
      .add_option(
          "--depths", args.depths,
          decode ? "tokens in front of the measured ones [0,4096]" : "prompt lengths [512,4096]")
      ->delimiter(',')
      ->transform(with_suffix())
      ->check(in_range(0, 1 << 30))
      ->type_name("N,...");
  command.add_option("-n", args.n, decode ? "measured steps [32]" : "repetitions [1]")
      ->check(in_range(1, 1 << 20))
      ->type_name("N");
}

void add_batch_options(CLI::App& command, BenchArgs& args) {
  args.depths = {256};
  args.n = 1024;
  command.add_option("--batch", args.batches, "sequences decoded together [32]")
      ->delimiter(',')
      ->check(in_range(1, 4096))
      ->type_name("N,...");
  command.add_option("--prompt", args.depths, "tokens of each sequence's prompt [256]")
      ->delimiter(',')
      ->transform(with_suffix())
      ->check(in_range(1, 1 << 28))
      ->type_name("N,...");
  command.add_option("--gen,-n", args.n, "tokens that each sequence decodes [1024]")
      ->transform(with_suffix())
      ->check(in_range(1, 1 << 28))
      ->type_name("N");
}

void add_kind(CLI::App& parent, const KindInfo& kind, int& exit_code) {
  auto args = std::make_shared<BenchArgs>();
  args->kind = kind.kind;
  CLI::App* command = parent.add_subcommand(kind.name, kind.help);
  if (kind.kind == BenchKind::Batch) {
    add_batch_options(*command, *args);
  } else {
    add_depth_options(*command, *args);
  }
  command->add_option("--policies,--policy", args->policies, "policies to measure [full,qevict+]")
      ->delimiter(',')
      ->type_name("NAME,...");
  if (kind.kind != BenchKind::Prefill) {
    command->add_flag("--synthetic-cache", args->synthetic_cache,
                      "fill the cache with pseudo-random K and V instead of reading a prompt");
  }
  command->add_flag("--json", args->common.json, "")->group("");  // JSON lines are all there is
  add_model_options(*command, args->common);
  add_cache_options(*command, args->common);
  add_quiet_option(*command, args->common);
  command->footer(
      fmt::format("Prints a JSON line for each cell; peak_rss_bytes is the process's highest\n"
                  "resident memory while that line was measured.\nExample:\n  qevict bench {} {}",
                  kind.name, kind.example));
  command->callback([args, &exit_code] {
    const Result<int> code = bench(*args);
    exit_code = code ? *code : report_error(code.error());
  });
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("bench", "measure speed: JSON lines");
  command->require_subcommand(1);
  command->footer("Example:\n  qevict bench decode --depths 0,4K --policies full,qevict+ -n 32");
  for (const KindInfo& kind : kKinds) add_kind(*command, kind, exit_code);
  add_bench_kernels(*command, exit_code);
}

}  // namespace qevict::cli
