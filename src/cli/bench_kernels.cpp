// qevict bench kernels: the attention kernels alone, beside ggml's, as JSON lines.
//
// Everything of one shape is measured in one run, interleaved: a round times each contender once,
// so that a busy minute of the machine meets all of them. Times are CPU time of this process.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <new>

#include "cli/commands.h"
#include "cli/json_report.h"
#include "cli/kernel_scenes.h"
#include "cli/signals.h"
#include "engine/run_report.h"
#include "model/ggml_peer.h"

namespace qevict::cli {
namespace {

struct KernelArgs {
  int head_dim = 0, group = 0;  // 0: both of the usual shapes
  int tokens = 16384;
  int prefill_tokens = 2048;
  int rounds = 5;
  bool hot = false, cold = false;
  std::vector<std::string> isas, formats;
  bool quiet = false, json = false;
  std::size_t working_set() const { return hot ? std::size_t{1} << 20 : std::size_t{100} << 20; }
};

constexpr double kShortestSeconds = 0.01;  // a shorter pass is repeated within a round

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// One thing that is timed every round.
struct Contender {
  std::function<void()> pass;
  int repeats = 1;
  std::vector<double> seconds = {};  // of one pass, a value a round

  void warm_up() {
    const double start = cpu_seconds();
    pass();
    const double once = std::max(1e-7, cpu_seconds() - start);
    repeats = std::max(1, static_cast<int>(kShortestSeconds / once));
  }
  void run_round() {
    const double start = cpu_seconds();
    for (int i = 0; i < repeats; ++i) pass();
    seconds.push_back((cpu_seconds() - start) / repeats);
  }
  double median() const { return quantile(seconds, 0.5); }
  double min() const { return quantile(seconds, 0.0); }
};

// A row of the report: attention over a tier's format, or ggml's.
struct Row {
  std::string format, isa;
  double token_heads = 0, bytes = 0;
  std::size_t contender = 0;
  std::size_t phases = 0;  // its contender, if the format needs phases
};

Status run_rounds(std::vector<Contender>& contenders, int rounds, ProgressBar& bar) {
  for (int round = -1; round < rounds; ++round) {
    for (Contender& c : contenders) {
      if (interrupted_by_user()) return interrupted("interrupted (Ctrl-C): run it again");
      round < 0 ? c.warm_up() : c.run_round();
    }
    bar.update((round + 2.0) / (rounds + 1.0));
  }
  return {};
}

std::vector<const KernelTable*> tables(const KernelArgs& args) {
  std::vector<const KernelTable*> chosen;
  for (const std::string& isa : args.isas) chosen.push_back(find_kernels(isa));
  return chosen;
}

Json shape_json(const char* kernel, const KernelShape& shape, const std::string& isa) {
  return {{"bench", "kernels"},         {"kernel", kernel},     {"isa", isa},
          {"head_dim", shape.head_dim}, {"group", shape.group}, {"threads", 1}};
}

Json row_json(const KernelArgs& args, const KernelShape& shape, const Row& row,
              const std::vector<Contender>& contenders, double stream_bytes) {
  const Contender& c = contenders[row.contender];
  const auto ns = [&](double seconds) { return 1e9 * seconds / row.token_heads; };
  const double gb_s = 1e-9 * row.bytes / c.median();
  const double stream = 1e-9 * stream_bytes / contenders[0].median();
  Json line = shape_json("decode", shape, row.isa);
  line["format"] = row.format;
  line["kv_heads"] = shape.n_kv_heads;
  line["tokens"] = shape.tokens;
  line["memory"] = args.hot ? "cache" : "dram";
  line["working_set_bytes"] = static_cast<std::int64_t>(row.bytes);
  line["ns_per_token_head"] = {{"min", ns(c.min())}, {"median", ns(c.median())}};
  if (row.phases > 0) line["phases_ns_per_token_head"] = ns(contenders[row.phases].median());
  line["bytes_per_token_head"] = row.bytes / row.token_heads;
  line["gb_s"] = gb_s;
  line["stream_gb_s"] = stream;
  line["roofline_share"] = gb_s / stream;
  line["n"] = args.rounds;
  return line;
}

// How many times faster than ggml, round by round.
double speedup(const Row& row, const Row& peer, const std::vector<Contender>& contenders) {
  std::vector<double> ratios;
  const std::vector<double>& ours = contenders[row.contender].seconds;
  const std::vector<double>& theirs = contenders[peer.contender].seconds;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    ratios.push_back(theirs[i] / peer.token_heads / (ours[i] / row.token_heads));
  }
  return quantile(ratios, 0.5);
}

Status measure_decode(const KernelArgs& args, const KernelShape& shape, const Console& console,
                      Output& output) {
  const std::size_t bytes = args.working_set();
  std::vector<Contender> contenders;
  std::vector<Row> rows;
  std::vector<std::unique_ptr<TierScene>> scenes;
  StreamScene stream(bytes);
  contenders.push_back({[&] { stream.read(); }});
  for (const TierFormat& format : tier_formats()) {
    if (std::ranges::find(args.formats, format.name) == args.formats.end()) continue;
    TierScene* scene = scenes.emplace_back(std::make_unique<TierScene>(shape, format, bytes)).get();
    for (const KernelTable* table : tables(args)) {
      Row row{std::string(format.name), table->name, scene->token_heads(),
              static_cast<double>(scene->bytes()), contenders.size()};
      contenders.push_back({[=] { scene->attend(*table); }});
      if (format.quantized) {
        row.phases = contenders.size();
        contenders.push_back({[=] { scene->compute_phases(*table); }});
      }
      rows.push_back(row);
    }
  }
  GgmlAttention::Shape peer_shape{shape.group * shape.n_kv_heads, shape.n_kv_heads, shape.head_dim,
                                  shape.tokens, 1};
  const std::size_t token_bytes = std::size_t{4} * shape.n_kv_heads * shape.head_dim;
  if (args.hot) {
    peer_shape.n_tokens = std::min(shape.tokens, static_cast<int>(bytes / token_bytes));
  }
  const std::size_t cache_bytes = token_bytes * peer_shape.n_tokens;
  peer_shape.n_caches =
      static_cast<int>(std::max<std::size_t>(1, (bytes + cache_bytes - 1) / cache_bytes));
  const auto peer = GgmlAttention::create(peer_shape);
  if (!peer) return std::unexpected(peer.error());
  const Row peer_row{
      "f16", "ggml",
      static_cast<double>(peer_shape.n_tokens) * peer_shape.n_caches * shape.n_kv_heads,
      static_cast<double>((*peer)->bytes()), contenders.size()};
  bool peer_ran = true;
  contenders.push_back({[&] { peer_ran = (*peer)->run() && peer_ran; }});

  ProgressBar bar(console, fmt::format("D {} g {}", shape.head_dim, shape.group));
  if (Status s = run_rounds(contenders, args.rounds, bar); !s) return s;
  bar.clear();
  if (!peer_ran) return runtime_error("ggml could not compute its attention (bench kernels)");
  const auto stream_bytes = static_cast<double>(stream.bytes());
  for (const Row& row : rows) {
    Json line = row_json(args, shape, row, contenders, stream_bytes);
    line["times_faster_than_ggml"] = speedup(row, peer_row, contenders);
    output.write(dump_json(line) + "\n");
  }
  output.write(dump_json(row_json(args, shape, peer_row, contenders, stream_bytes)) + "\n");
  return output.status();
}

Status measure_prefill(const KernelArgs& args, const KernelShape& shape, const Console& console,
                       Output& output) {
  PromptScene scene(shape, args.prefill_tokens);
  std::vector<Contender> contenders;
  for (const KernelTable* table : tables(args)) {
    contenders.push_back({[&scene, table] { scene.attend(*table); }});
  }
  ProgressBar bar(console, fmt::format("prompt, D {} g {}", shape.head_dim, shape.group));
  if (Status s = run_rounds(contenders, args.rounds, bar); !s) return s;
  bar.clear();
  for (std::size_t i = 0; i < contenders.size(); ++i) {
    Json line = shape_json("prefill", shape, args.isas[i]);
    line["tokens"] = args.prefill_tokens;
    line["masses"] = true;
    line["gflop_s"] = {{"max", 1e-9 * scene.flops() / contenders[i].min()},
                       {"median", 1e-9 * scene.flops() / contenders[i].median()}};
    line["n"] = args.rounds;
    output.write(dump_json(line) + "\n");
  }
  return output.status();
}

// Refuses what is not there; fills in what was not given.
Status complete(KernelArgs& args) {
  if (args.hot && args.cold) {
    return bad_input("--hot and --cold exclude each other (command line): give one of them");
  }
  const std::vector<std::string> available = available_isas();
  if (args.isas.empty()) {
    // Not the scalar specification: a round of it takes a minute.
    args.isas.assign(available.begin() + (available.size() > 1 ? 1 : 0), available.end());
  }
  for (const std::string& isa : args.isas) {
    if (find_kernels(isa) == nullptr) {
      return bad_input(fmt::format("no such kernels on this machine: '{}' (--isa): use {}", isa,
                                   fmt::join(available, ", ")));
    }
  }
  std::vector<std::string> known;
  for (const TierFormat& format : tier_formats()) known.emplace_back(format.name);
  if (args.formats.empty()) args.formats = known;
  for (const std::string& format : args.formats) {
    if (std::ranges::find(known, format) == known.end()) {
      return bad_input(
          fmt::format("no such format: '{}' (--formats): use {}", format, fmt::join(known, ", ")));
    }
  }
  if (args.head_dim % 4 != 0) {
    return bad_input(
        fmt::format("head dimension {} (--head-dim): use a multiple of 4", args.head_dim));
  }
  return {};
}

Result<int> bench_kernels(KernelArgs& args) {
  if (const std::string isa = isa_error(); !isa.empty()) return bad_input(isa);
  if (Status s = complete(args); !s) return std::unexpected(s.error());
  std::vector<KernelShape> shapes;
  if (args.head_dim == 0 && args.group == 0) {
    shapes = {{64, 7}, {128, 4}};
  } else {
    const int dim = args.head_dim > 0 ? args.head_dim : 64;
    shapes = {{dim, args.group > 0 ? args.group : dim > 64 ? 4 : 7}};
  }
  const Console console(args.quiet);
  Output output;
  try {
    for (KernelShape& shape : shapes) {
      shape.tokens = args.tokens;
      if (Status s = measure_decode(args, shape, console, output); !s) {
        return std::unexpected(s.error());
      }
      if (args.prefill_tokens == 0) continue;
      if (Status s = measure_prefill(args, shape, console, output); !s) {
        return std::unexpected(s.error());
      }
    }
  } catch (const std::bad_alloc&) {
    return runtime_error("out of memory (bench kernels): lower --tokens");
  }
  return kOk;
}

}  // namespace

void add_bench_kernels(CLI::App& bench, int& exit_code) {
  auto args = std::make_shared<KernelArgs>();
  CLI::App* command = bench.add_subcommand("kernels", "attention kernels alone, beside ggml's");
  command->add_option("--head-dim", args->head_dim, "head dimension [64 with group 7, 128 with 4]")
      ->check(in_range(8, kMaxHeadDim))
      ->type_name("D");
  command->add_option("--group", args->group, "query heads a KV head")
      ->check(in_range(1, 64))
      ->type_name("G");
  command->add_option("--tokens", args->tokens, "tokens of a cache [16384]")
      ->transform(with_suffix())
      ->check(in_range(512, 1 << 20))
      ->type_name("N");
  command
      ->add_option("--prefill-tokens", args->prefill_tokens, "length of the prompt [2048]; 0: none")
      ->transform(with_suffix())
      ->check(in_range(0, 1 << 16))
      ->type_name("N");
  command->add_option("--isa", args->isas, "instruction sets [all but reference]")
      ->delimiter(',')
      ->type_name("NAME,...");
  command->add_option("--formats", args->formats, "how the tiers are stored [all]")
      ->delimiter(',')
      ->type_name("NAME,...");
  command->add_flag("--cold", args->cold, "100 MB a contender, from memory (the default)");
  command->add_flag("--hot", args->hot, "1 MB, from the core's cache");
  command->add_option("-n", args->rounds, "rounds [5]")->check(in_range(1, 1000))->type_name("N");
  command->add_flag("--json", args->json, "")->group("");  // JSON lines are all there is
  command->add_flag("-q,--quiet", args->quiet, "errors only on stderr");
  command->footer(
      "One thread, CPU time. A JSON line for each shape, format and instruction set: ns a token "
      "and\n"
      "KV head (all its query heads, window phases and attention masses included), GB/s, the "
      "share\n"
      "of what this core reads from the same kind of memory, and how many times faster than "
      "ggml's\n"
      "flash attention over f16 K and V (one query token, the same round). Then GFLOP/s of a "
      "causal\n"
      "prompt, masses included.\nExample:\n  qevict bench kernels --head-dim 128 --isa "
      "avx2,avx512");
  command->callback([args, &exit_code] {
    const Result<int> code = bench_kernels(*args);
    exit_code = code ? *code : report_error(code.error());
  });
}

}  // namespace qevict::cli
