// Helpers of the kinds of `qevict bench`.
#include <fmt/format.h>

#include <cmath>
#include <random>

#include "cli/bench.h"
#include "cli/signals.h"
#include "engine/run_report.h"
#include "kernels/kernels.h"

namespace qevict::cli {

double ms_since(BenchClock::time_point start) {
  return std::chrono::duration<double, std::milli>(BenchClock::now() - start).count();
}

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

Result<double> read_prompt(Session& session, std::span<const TokenId> prompt, int max_new,
                           const Console& console) {
  GenerateOptions options;
  options.cancel = &interrupt_flag();
  ProgressBar bar(console, fmt::format("reading {} tokens", prompt.size()));
  options.prefill_progress = bar.block_counter();
  const BenchClock::time_point start = BenchClock::now();
  const auto logits = session.prefill(prompt, max_new, options);
  if (!logits) return std::unexpected(logits.error());
  return ms_since(start);
}

std::int64_t attended_bytes(const Session& session) {
  const KvCache& cache = session.cache();
  const TierBytes bytes = cache.bytes();
  const std::size_t skipped = cache.config().quantized_accessible ? 0 : bytes.quantized;
  return static_cast<std::int64_t>(bytes.total() - skipped);
}

Json begin_line(const char* kind, const BenchCell& cell, const Engine& engine) {
  return {{"bench", kind},
          {"policy", cell.policy},
          {"ctx", cell.depth},
          {"batch", cell.batch},
          {"threads", engine.n_threads()}};
}

void end_line(const BenchArgs& args, const BenchCell& cell, const Engine& engine, Json& line) {
  line["peak_rss_bytes"] = peak_resident_set_bytes();
  line["n"] = args.n;
  if (args.kind != BenchKind::Prefill) line["synthetic"] = args.synthetic_cache;
  line["kv_budget"] = cell.config.budget.to_string();
  line["isa"] = active_kernels().name;
  line["attention"] = attention_name(cell.config.fused_attention);
  line["model"] = engine.model().path();
}

Json quantiles(const std::vector<double>& ms) {
  return {{"min", quantile(ms, 0.0)}, {"median", quantile(ms, 0.5)}, {"p95", quantile(ms, 0.95)}};
}

Json roofline(const Engine& engine, double kv_bytes, double step_ms) {
  const std::int64_t weights = engine.step_weight_bytes();
  const std::int64_t kv = std::llround(kv_bytes);
  const double gb_s = static_cast<double>(weights + kv) / step_ms * 1e-6;
  const double stream = stream_read_gb_s(engine.n_threads());
  return {{"weight_bytes", weights},
          {"kv_bytes", kv},
          {"gb_s", gb_s},
          {"stream_gb_s", stream},
          {"share", gb_s / stream}};
}

}  // namespace qevict::cli
