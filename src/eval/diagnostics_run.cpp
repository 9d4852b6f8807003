#include "eval/diagnostics_run.h"

#include <fmt/format.h>

#include <memory>
#include <new>

#include "engine/perplexity.h"

namespace qevict {
namespace {

// As good as minus infinity, but differences of two are 0.
constexpr float kBanned = -1e30F;

Status check(const DiagnosticsCell& cell) {
  if (!cell.config.fused_attention) {
    return bad_input("materialised (attention): diagnostics need --attention fused");
  }
  if (cell.config.ranker.kind == Ranker::Kind::PNorm) {
    return bad_input(cell.config.ranker.to_string() +
                     " (ranker): diagnostics need plain attention mass; use another ranker");
  }
  return {};
}

// Of tokens that no one ranks: each is its own window.
CacheConfig full_cache() {
  CacheConfig config;
  config.policy = "full";
  config.window = 1;
  config.n_sink = 0;
  config.quant_share = 0.0;
  return config;
}

class Run {
 public:
  Run(Engine& engine, std::span<const TokenId> prompt, std::span<const TokenId> forced,
      std::size_t n_sessions, const DiagnosticsOptions& options)
      : engine_(engine),
        prompt_(prompt),
        forced_(forced),
        n_sessions_(static_cast<double>(n_sessions)),
        options_(options) {}

  int n_steps() const { return static_cast<int>(forced_.size()) - 1; }
  int n_positions() const { return static_cast<int>(prompt_.size()) + n_steps(); }

  // Decodes a new session along the tokens. open(session) comes before the prompt, before_step()
  // before every step, after_step(step, logits) after it.
  template <typename Open, typename Before, typename After>
  Status decode(const CacheConfig& config, Open open, Before before_step, After after_step) {
    auto session = engine_.create_session(config);
    if (!session) return std::unexpected(session.error());
    open(**session);
    GenerateOptions prefill;
    prefill.cancel = options_.cancel;
    prefill.prefill_progress = [&](int done, int total) {
      report(0.5 * static_cast<double>(done) / total);
    };
    auto logits = (*session)->prefill(prompt_, static_cast<int>(forced_.size()), prefill);
    if (!logits) return std::unexpected(logits.error());
    for (int step = 1; step <= n_steps(); ++step) {
      if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed)) {
        return interrupted("interrupted while decoding (Ctrl-C): run it again");
      }
      before_step();
      logits = (*session)->decode(forced_[step - 1]);
      if (!logits) return std::unexpected(logits.error());
      allowed_.assign(logits->begin(), logits->end());
      for (const TokenId token : options_.banned) allowed_[token] = kBanned;
      after_step(step, allowed_);
      report(0.5 + 0.5 * static_cast<double>(step) / n_steps());
    }
    ++done_;
    return {};
  }

  Status run_full(DiagnosticsReport& report) {
    const HParams& hp = engine_.hparams();
    recorder_ = std::make_unique<AttentionRecorder>(hp.n_layers, hp.n_heads,
                                                    static_cast<int>(prompt_.size()), n_steps());
    logits_.reserve(static_cast<std::size_t>(hp.n_vocab) * n_steps());
    return decode(
        full_cache(), [&](Session& session) { session.set_observer(recorder_.get()); },
        [&] { recorder_->begin_step(); },
        [&](int step, std::span<const float> logits) {
          logits_.insert(logits_.end(), logits.begin(), logits.end());
          report.full_nll.push_back(negative_log_likelihood(logits, forced_[step]));
        });
  }

  Result<DiagnosticsRow> run_policy(const DiagnosticsCell& cell) {
    DiagnosticsRow row;
    row.name = cell.name;
    row.config = cell.config;
    std::unique_ptr<PolicyRecorder> recorder;
    const KvCache* cache = nullptr;
    PolicyRecord record;
    const auto open = [&](Session& session) {
      cache = &session.cache();
      recorder = std::make_unique<PolicyRecorder>(*cache, n_positions());
      if (cache->codec(0) != nullptr) return;  // keeps everything, routes nothing
      session.set_observer(recorder.get());
      session.set_trace([&](const LayerEvent& event) { recorder->on_event(event); });
    };
    const auto after_step = [&](int step, std::span<const float> logits) {
      const std::span<const float> reference = full_logits(step);
      row.nll.push_back(negative_log_likelihood(logits, forced_[step]));
      row.kl.push_back(kl_divergence(reference, logits));
      row.same_top1 += (most_likely(reference) == most_likely(logits) ? 1.0 : 0.0) / n_steps();
      if (step == n_steps()) record = recorder->finish(*cache);
    };
    if (Status s = decode(cell.config, open, [&] { recorder->begin_step(); }, after_step); !s) {
      return std::unexpected(s.error());
    }
    row.moves = record.counters;
    row.diagnostics = diagnose(recorder_->record(), record);
    row.window = record.window;
    if (record.quantized_accessible && record.has_quantized()) {
      row.full_tier_only = diagnose(recorder_->record(), record, false).mean;
    }
    return row;
  }

 private:
  std::span<const float> full_logits(int step) const {
    const std::size_t n = logits_.size() / n_steps();
    return std::span(logits_).subspan(n * (step - 1), n);
  }
  void report(double of_session) {
    if (options_.progress) options_.progress((done_ + of_session) / n_sessions_);
  }

  Engine& engine_;
  std::span<const TokenId> prompt_, forced_;
  double n_sessions_;
  const DiagnosticsOptions& options_;
  int done_ = 0;
  std::unique_ptr<AttentionRecorder> recorder_;
  std::vector<float> logits_;   // of the full cache: [n_steps][n_vocab]
  std::vector<float> allowed_;  // of the last step
};

}  // namespace

std::vector<DiagnosticsCell> paper_variants(const CacheConfig& base) {
  std::vector<DiagnosticsCell> cells;
  for (const LocalRule rule : {LocalRule::Floor, LocalRule::Ceil}) {
    CacheConfig r3 = base;
    r3.local_rule = rule;
    CacheConfig r1 = r3, r2 = r3, r4 = r3, unread = r3, no_promotion = r3;
    r1.window = 1;
    r1.quant_share = r2.quant_share = 0.0;
    r4.window = 32;
    unread.quantized_accessible = false;
    no_promotion.promotion = false;
    const std::string suffix = rule == LocalRule::Floor ? "" : " (ceil)";
    cells.push_back({"R1" + suffix, r1});
    cells.push_back({"R2" + suffix, r2});
    cells.push_back({"R3" + suffix, r3});
    cells.push_back({"R3 Full tier only, executed" + suffix, unread});
    cells.push_back({"R3 without promotion" + suffix, no_promotion});
    cells.push_back({"R4" + suffix, r4});
  }
  return cells;
}

Result<DiagnosticsReport> run_diagnostics(Engine& engine, std::span<const TokenId> prompt,
                                          std::span<const TokenId> forced,
                                          std::span<const DiagnosticsCell> cells,
                                          const DiagnosticsOptions& options) {
  if (prompt.empty() || forced.size() < 2) {
    return bad_input(
        fmt::format("{} prompt and {} forced tokens (diagnostics): give at least 1 "
                    "and 2",
                    prompt.size(), forced.size()));
  }
  for (const TokenId token : options.banned) {
    if (token < 0 || token >= engine.hparams().n_vocab) {
      return bad_input(fmt::format("banned token {} (diagnostics): use ids 0..{}", token,
                                   engine.hparams().n_vocab - 1));
    }
  }
  for (const DiagnosticsCell& cell : cells) {
    if (Status s = check(cell); !s) return std::unexpected(s.error());
  }
  try {
    DiagnosticsReport report;
    Run run(engine, prompt, forced, cells.size() + 1, options);
    report.n_layers = engine.hparams().n_layers;
    report.n_heads = engine.hparams().n_heads;
    report.prompt_tokens = static_cast<int>(prompt.size());
    report.decode_steps = run.n_steps();
    if (Status s = run.run_full(report); !s) return std::unexpected(s.error());
    for (const DiagnosticsCell& cell : cells) {
      Result<DiagnosticsRow> row = run.run_policy(cell);
      if (!row) return std::unexpected(row.error());
      report.rows.push_back(std::move(*row));
    }
    return report;
  } catch (const std::bad_alloc&) {
    return runtime_error(fmt::format(
        "out of memory ({} prompt and {} forced tokens): diagnostics hold all attention of the "
        "steps; shorten the prompt or the run",
        prompt.size(), forced.size()));
  }
}

}  // namespace qevict
