// qevict bench batch: many sequences, each with its own prompt and cache, decoded together.
#include <fmt/format.h>

#include <algorithm>

#include "cli/bench.h"
#include "cli/signals.h"
#include "engine/run_report.h"

namespace qevict::cli {
namespace {

using Sessions = std::vector<std::unique_ptr<Session>>;

struct BatchRun {
  Sessions sessions;
  double prefill_ms = 0.0;  // all prompts
  std::vector<double> step_ms;
  double kv_bytes = 0.0;  // attended to by all sequences, the mean over the steps
  double attention_ms = 0.0, routing_ms = 0.0;  // a step
};

// Tokens of sequence i: its prompt, then what it is made to decode.
std::span<const TokenId> tokens_of(std::span<const TokenId> all, std::size_t i, std::size_t n) {
  return all.subspan(i * n, n);
}

Status read_prompts(const BenchArgs& args, const BenchCell& cell, Engine& engine,
                    std::span<const TokenId> all, const Console& console, BatchRun& run) {
  const std::size_t n_prompt = static_cast<std::size_t>(cell.depth);
  const std::size_t n_each = n_prompt + static_cast<std::size_t>(args.n);
  const Console silent(true);  // one bar for all prompts
  ProgressBar bar(console, fmt::format("reading {} prompts", cell.batch));
  for (std::size_t i = 0; i < static_cast<std::size_t>(cell.batch); ++i) {
    auto session = engine.create_session(cell.config);
    if (!session) return std::unexpected(session.error());
    if (args.synthetic_cache) {
      const Status filled = (*session)->prefill_synthetic(cell.depth, args.n, i + 1);
      if (!filled) return filled;
    } else {
      const auto prompt = tokens_of(all, i, n_each).first(n_prompt);
      const Result<double> ms = read_prompt(**session, prompt, args.n, silent);
      if (!ms) return std::unexpected(ms.error());
      run.prefill_ms += *ms;
    }
    run.sessions.push_back(std::move(*session));
    bar.update(static_cast<double>(i + 1) / cell.batch);
  }
  return {};
}

Status decode_steps(const BenchArgs& args, const BenchCell& cell, Engine& engine,
                    std::span<const TokenId> all, const Console& console, BatchRun& run) {
  const std::size_t n_each = static_cast<std::size_t>(cell.depth + args.n);
  const std::unique_ptr<Batch> batch = engine.create_batch();
  std::vector<BatchInput> inputs(run.sessions.size());
  ProgressBar bar(console, fmt::format("decoding {} sequences", cell.batch));
  for (int step = 0; step < args.n; ++step) {
    if (interrupted_by_user()) {
      return interrupted("interrupted while decoding (Ctrl-C): run it again");
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = {run.sessions[i].get(), tokens_of(all, i, n_each)[cell.depth + step]};
    }
    const BenchClock::time_point start = BenchClock::now();
    const auto rows = batch->decode(inputs);
    run.step_ms.push_back(ms_since(start));
    for (const auto& row : rows) {
      if (!row) return std::unexpected(row.error());
    }
    for (const auto& session : run.sessions) {
      run.kv_bytes += static_cast<double>(attended_bytes(*session)) / args.n;
    }
    bar.update(static_cast<double>(step + 1) / args.n);
  }
  run.attention_ms = 1000.0 * batch->attention_seconds() / args.n;
  run.routing_ms = 1000.0 * batch->routing_seconds() / args.n;
  return {};
}

}  // namespace

Result<Json> bench_batch(const BenchArgs& args, const BenchCell& cell, Engine& engine,
                         const Console& console) {
  const auto tokens = synthetic_tokens(
      engine.tokenizer(), static_cast<std::size_t>(cell.batch) * (cell.depth + args.n));
  BatchRun run;
  if (Status s = read_prompts(args, cell, engine, tokens, console, run); !s) {
    return std::unexpected(s.error());
  }
  if (Status s = decode_steps(args, cell, engine, tokens, console, run); !s) {
    return std::unexpected(s.error());
  }
  std::int64_t kv_bytes = 0, full_cache_bytes = 0;
  for (const auto& session : run.sessions) {
    const CacheStats kv = session->kv_stats();
    kv_bytes += kv.resident_bytes;
    full_cache_bytes += kv.full_cache_bytes;
  }
  double total_ms = 0.0;
  for (const double ms : run.step_ms) total_ms += ms;
  Json line = begin_line("batch", cell, engine);
  line["tpot_ms"] = quantiles(run.step_ms);
  line["tok_s"] = 1000.0 * cell.batch * args.n / total_ms;
  line["attention_ms"] = run.attention_ms;
  line["routing_ms"] = run.routing_ms;
  if (!args.synthetic_cache) {
    line["prefill_tok_s"] = 1000.0 * cell.batch * cell.depth / run.prefill_ms;
  }
  line["kv_bytes"] = kv_bytes;
  line["full_cache_bytes"] = full_cache_bytes;
  end_line(args, cell, engine, line);
  line["roofline"] = roofline(engine, run.kv_bytes, quantile(run.step_ms, 0.5));
  return line;
}

}  // namespace qevict::cli
