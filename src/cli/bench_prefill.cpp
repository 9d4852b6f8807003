// qevict bench prefill: the time of a prompt, repeated.
#include <algorithm>

#include "cli/bench.h"
#include "engine/run_report.h"

namespace qevict::cli {

Result<Json> bench_prefill(const BenchArgs& args, const BenchCell& cell, Engine& engine,
                           const Console& console) {
  const int n_prompt = std::max(1, cell.depth);
  const auto tokens = synthetic_tokens(engine.tokenizer(), static_cast<std::size_t>(n_prompt));
  std::vector<double> prompt_ms;
  double attention_ms = 0.0;
  CacheStats kv;
  for (int i = 0; i < args.n; ++i) {
    auto session = engine.create_session(cell.config);
    if (!session) return std::unexpected(session.error());
    const Result<double> ms = read_prompt(**session, tokens, 1, console);
    if (!ms) return std::unexpected(ms.error());
    prompt_ms.push_back(*ms);
    attention_ms += 1000.0 * (*session)->attention_seconds() / args.n;
    kv = (*session)->kv_stats();
  }
  Json line = begin_line("prefill", cell, engine);
  line["ttft_ms"] = quantiles(prompt_ms);
  line["attention_ms"] = attention_ms;
  line["prefill_tok_s"] = 1000.0 * n_prompt / quantile(prompt_ms, 0.5);
  line["kv_bytes"] = kv.resident_bytes;
  line["full_cache_bytes"] = kv.full_cache_bytes;
  end_line(args, cell, engine, line);
  return line;
}

}  // namespace qevict::cli
