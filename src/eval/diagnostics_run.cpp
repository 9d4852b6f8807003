#include "eval/diagnostics_run.h"

#include <fmt/format.h>

#include <memory>
#include <new>

#include "engine/perplexity.h"
#include "engine/prompt_fork.h"

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

// The full cache reads the prompt; sessions of policies are filled from captures of it.
class Run {
 public:
  Run(Engine& engine, std::span<const TokenId> prompt, std::span<const TokenId> forced,
      const DiagnosticsOptions& options)
      : engine_(engine), prompt_(prompt), forced_(forced), options_(options) {}

  // How often the prompt is read or the tokens are decoded.
  void expect_passes(std::size_t n) { n_passes_ = static_cast<double>(n); }

  Status run_full(DiagnosticsReport& report) {
    const HParams& hp = engine_.hparams();
    recorder_ = std::make_unique<AttentionRecorder>(hp.n_layers, hp.n_heads,
                                                    static_cast<int>(prompt_.size()), n_steps());
    logits_.reserve(static_cast<std::size_t>(hp.n_vocab) * n_steps());
    auto session = engine_.create_session(full_cache());
    if (!session) return std::unexpected(session.error());
    (*session)->set_observer(recorder_.get());
    GenerateOptions prefill;
    prefill.cancel = options_.cancel;
    prefill.prefill_progress = [&](int done, int total) {
      progress(static_cast<double>(done) / total);
    };
    const auto read = (*session)->prefill(prompt_, static_cast<int>(forced_.size()), prefill);
    if (!read) return std::unexpected(read.error());
    ++done_;
    return decode(
        **session, [&] { recorder_->begin_step(); },
        [&](int step, std::span<const float> logits) {
          logits_.insert(logits_.end(), logits.begin(), logits.end());
          report.full_nll.push_back(negative_log_likelihood(logits, forced_[step]));
        });
  }

  Result<std::shared_ptr<const PromptSnapshot>> capture(CaptureOptions capture) {
    capture.cancel = options_.cancel;
    capture.progress = [&](int done, int total) { progress(static_cast<double>(done) / total); };
    auto snapshot = engine_.capture_prompt(prompt_, capture);
    ++done_;
    return snapshot;
  }

  Result<DiagnosticsRow> run_policy(const DiagnosticsCell& cell, const PromptSnapshot& prompt) {
    DiagnosticsRow row;
    row.name = cell.name;
    row.config = cell.config;
    auto session = engine_.create_session(cell.config);
    if (!session) return std::unexpected(session.error());
    const KvCache& cache = (*session)->cache();
    PolicyRecorder recorder(cache, recorder_->record());
    const bool routes = cache.codec(0) == nullptr;  // a codec keeps everything
    if (routes) {
      (*session)->set_trace([&](const LayerEvent& event) { recorder.on_event(event); });
    }
    const auto filled = (*session)->prefill(prompt, static_cast<int>(forced_.size()));
    if (!filled) return std::unexpected(filled.error());
    if (routes) (*session)->set_observer(&recorder);
    const auto after_step = [&](int step, std::span<const float> logits) {
      const std::span<const float> reference = full_logits(step);
      row.nll.push_back(negative_log_likelihood(logits, forced_[step]));
      row.kl.push_back(kl_divergence(reference, logits));
      row.same_top1 += (most_likely(reference) == most_likely(logits) ? 1.0 : 0.0) / n_steps();
    };
    if (Status s = decode(**session, [&] { recorder.begin_step(); }, after_step); !s) {
      return std::unexpected(s.error());
    }
    const PolicyRecord record = recorder.finish(cache);
    row.moves = record.counters;
    row.diagnostics = diagnose(recorder_->record(), record);
    row.window = record.window;
    if (record.has_full_tier && record.quantized_accessible && record.has_quantized()) {
      row.full_tier_only = diagnose(recorder_->record(), record, false).mean;
    }
    return row;
  }

  int n_steps() const { return static_cast<int>(forced_.size()) - 1; }

 private:
  std::span<const float> full_logits(int step) const {
    const std::size_t n = logits_.size() / n_steps();
    return std::span(logits_).subspan(n * (step - 1), n);
  }
  void progress(double of_pass) {
    if (options_.progress) options_.progress((done_ + of_pass) / n_passes_);
  }
  // Along the forced tokens. before_step() comes before every step, after_step(step, logits) after
  // it.
  template <typename Before, typename After>
  Status decode(Session& session, Before before_step, After after_step) {
    for (int step = 1; step <= n_steps(); ++step) {
      if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed)) {
        return interrupted("interrupted while decoding (Ctrl-C): run it again");
      }
      before_step();
      const auto logits = session.decode(forced_[step - 1]);
      if (!logits) return std::unexpected(logits.error());
      allowed_.assign(logits->begin(), logits->end());
      for (const TokenId token : options_.banned) allowed_[token] = kBanned;
      after_step(step, allowed_);
      progress(static_cast<double>(step) / n_steps());
    }
    ++done_;
    return {};
  }

  Engine& engine_;
  std::span<const TokenId> prompt_, forced_;
  const DiagnosticsOptions& options_;
  double n_passes_ = 1.0;
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
    std::vector<CacheConfig> configs;
    for (const DiagnosticsCell& cell : cells) configs.push_back(cell.config);
    auto groups = group_prompts(configs, [&](std::size_t i) { return cells[i].name; });
    if (!groups) return std::unexpected(groups.error());
    Run run(engine, prompt, forced, options);
    run.expect_passes(2 + groups->size() + cells.size());
    report.n_layers = engine.hparams().n_layers;
    report.n_heads = engine.hparams().n_heads;
    report.prompt_tokens = static_cast<int>(prompt.size());
    report.decode_steps = run.n_steps();
    if (Status s = run.run_full(report); !s) return std::unexpected(s.error());
    report.rows.resize(cells.size());
    for (PromptGroup& group : *groups) {
      const auto snapshot = run.capture(std::move(group.capture));
      if (!snapshot) return std::unexpected(snapshot.error());
      for (const std::size_t i : group.indexes) {
        Result<DiagnosticsRow> row = run.run_policy(cells[i], **snapshot);
        if (!row) return std::unexpected(row.error());
        report.rows[i] = std::move(*row);
      }
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
