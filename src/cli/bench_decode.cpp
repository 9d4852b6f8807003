// qevict bench decode: the time of a token at a given depth.
#include <algorithm>

#include "cli/bench.h"
#include "cli/signals.h"
#include "engine/run_report.h"

namespace qevict::cli {
namespace {

struct Steps {
  std::vector<double> ms;
  double kv_bytes = 0.0;      // attended to, the mean over the steps
  double attention_ms = 0.0;  // a token
};

// One step to warm up, then the measured ones.
Result<Steps> decode(Session& session, std::span<const TokenId> tokens) {
  Steps steps;
  const double n = static_cast<double>(tokens.size() - 1);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (interrupted_by_user()) {
      return interrupted("interrupted while decoding (Ctrl-C): run it again");
    }
    const BenchClock::time_point start = BenchClock::now();
    const auto logits = session.decode(tokens[i]);
    if (!logits) return std::unexpected(logits.error());
    if (i == 0) {
      static_cast<void>(session.attention_seconds());  // forgets prompt and warm-up
      continue;
    }
    steps.ms.push_back(ms_since(start));
    steps.kv_bytes += static_cast<double>(attended_bytes(session)) / n;
  }
  steps.attention_ms = 1000.0 * session.attention_seconds() / n;
  return steps;
}

}  // namespace

Result<Json> bench_decode(const BenchArgs& args, const BenchCell& cell, Engine& engine,
                          const Console& console) {
  auto session = engine.create_session(cell.config);
  if (!session) return std::unexpected(session.error());
  // Depth 0 still needs a token to start from.
  const std::size_t n_prompt = static_cast<std::size_t>(std::max(1, cell.depth));
  const int n_steps = args.n + 1;
  const auto tokens = synthetic_tokens(engine.tokenizer(), n_prompt + n_steps);
  const std::span<const TokenId> all(tokens);
  double prefill_ms = 0.0;
  if (args.synthetic_cache) {
    const Status filled =
        (*session)->prefill_synthetic(static_cast<int>(n_prompt), n_steps, /*seed=*/1);
    if (!filled) return std::unexpected(filled.error());
  } else {
    const Result<double> ms = read_prompt(**session, all.first(n_prompt), n_steps, console);
    if (!ms) return std::unexpected(ms.error());
    prefill_ms = *ms;
  }
  const Result<Steps> steps = decode(**session, all.subspan(n_prompt));
  if (!steps) return std::unexpected(steps.error());
  const CacheStats kv = (*session)->kv_stats();
  Json line = begin_line("decode", cell, engine);
  line["tpot_ms"] = quantiles(steps->ms);
  line["attention_ms"] = steps->attention_ms;
  if (!args.synthetic_cache) {
    line["prefill_tok_s"] = 1000.0 * static_cast<double>(n_prompt) / prefill_ms;
  }
  line["kv_bytes"] = kv.resident_bytes;
  line["full_cache_bytes"] = kv.full_cache_bytes;
  end_line(args, cell, engine, line);
  line["roofline"] = roofline(engine, steps->kv_bytes, quantile(steps->ms, 0.5));
  return line;
}

}  // namespace qevict::cli
