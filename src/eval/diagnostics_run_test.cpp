#include "eval/diagnostics_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <numeric>

#include "eval/diagnostics_json.h"
#include "gguf_writer.h"
#include "policies/registry.h"

namespace qevict {
namespace {

class DiagnosticsRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    path_ = temp_model_path("diagnostics");
    TinyModel model;
    model.head_dim = 16;
    model.n_ff = 64;
    ASSERT_EQ(write_tiny_model(path_, model), "");
    EngineOptions options;
    options.model_path = path_;
    options.n_threads = 1;
    auto engine = Engine::load(options);
    ASSERT_TRUE(engine) << engine.error().message;
    engine_ = engine->release();
  }
  static void TearDownTestSuite() {
    delete engine_;
    std::remove(path_.c_str());
  }

  static std::vector<TokenId> tokens(int n, int first) {
    std::vector<TokenId> ids;
    for (int i = 0; i < n; ++i) ids.push_back(20 + (first + i) * 37 % 200);
    return ids;
  }
  static CacheConfig config(double budget) {
    CacheConfig c;
    c.budget = {KvBudget::Unit::Ratio, budget};
    c.n_local = 8;
    return c;
  }

  static inline Engine* engine_ = nullptr;
  static inline std::string path_;
};

TEST_F(DiagnosticsRun, TheFullCachesHeadsSpreadAProbabilityOfOne) {
  const HParams& hp = engine_->hparams();
  AttentionRecorder recorder(hp.n_layers, hp.n_heads, 50, 3);
  CacheConfig full;
  full.policy = "full";
  full.window = 1;
  full.n_sink = 0;
  auto session = engine_->create_session(full);
  ASSERT_TRUE(session);
  (*session)->set_observer(&recorder);
  ASSERT_TRUE((*session)->prefill(tokens(50, 0), 4, {}));
  for (int i = 0; i < 3; ++i) {
    recorder.begin_step();
    ASSERT_TRUE((*session)->decode(30 + i));
  }
  const AttentionRecord& record = recorder.record();
  for (int layer = 0; layer < hp.n_layers; ++layer) {
    for (int head = 0; head < hp.n_heads; ++head) {
      const auto prompt = record.prompt_mass(layer, head);
      EXPECT_NEAR(std::accumulate(prompt.begin(), prompt.end(), 0.0), 50.0, 1e-3);
      EXPECT_GT(prompt[49], 0.0);
      EXPECT_LE(prompt[49], 1.0);
      for (int step = 1; step <= 3; ++step) {
        const auto row = record.step_attention(layer, head).step(step);
        const auto end = row.begin() + 50 + step;
        EXPECT_NEAR(std::accumulate(row.begin(), end, 0.0), 1.0, 1e-5);
        EXPECT_GT(*(end - 1), 0.0F);
        EXPECT_EQ(std::accumulate(end, row.end(), 0.0), 0.0);
      }
    }
  }
}

TEST_F(DiagnosticsRun, AnUncompressedCacheMissesNothing) {
  const std::vector<DiagnosticsCell> cells = {{"all", config(1.0)}};
  const auto report = run_diagnostics(*engine_, tokens(60, 0), tokens(25, 5), cells);
  ASSERT_TRUE(report) << report.error().message;
  const DiagnosticsRow& row = report->rows[0];
  EXPECT_EQ(row.diagnostics.event_steps, (std::vector<int>{0, 8, 16}));
  EXPECT_EQ(row.diagnostics.mean.fmm, 0.0);
  EXPECT_NEAR(row.diagnostics.mean.share_full + row.diagnostics.mean.share_local, 1.0, 1e-12);
  EXPECT_TRUE(std::isnan(row.diagnostics.mean.qsa));
  EXPECT_FALSE(row.full_tier_only);
  EXPECT_NEAR(row.mean_kl(), 0.0, 1e-6);
  EXPECT_NEAR(row.mean_nll(), defined_mean(report->full_nll), 1e-4);
  EXPECT_EQ(row.nll.size(), 24U);
}

TEST_F(DiagnosticsRun, FineCodesGetTheFullCachesAttention) {
  CacheConfig fine = config(0.9);
  fine.quant_bits = 8;
  fine.quant_share = 1.0;
  const std::vector<DiagnosticsCell> cells = {{"fine", fine}};
  const auto report = run_diagnostics(*engine_, tokens(60, 0), tokens(34, 5), cells);
  ASSERT_TRUE(report) << report.error().message;
  const PolicyDiagnostics& d = report->rows[0].diagnostics;
  EXPECT_EQ(d.mean.share_evicted, 0.0);
  EXPECT_GT(d.mean.share_quantized, 0.1);
  for (const DiagnosticValues& event : d.per_event) {
    EXPECT_NEAR(event.qsa, 1.0, 1e-5);
    EXPECT_NEAR(event.qsa_head_min, 1.0, 1e-4);
    EXPECT_NEAR(event.rq, 1.0, 1e-3);
  }
  EXPECT_NEAR(d.per_event[0].rq, 1.0, 1e-6);  // nothing quantised was read yet
  EXPECT_NEAR(d.mean.rq_interval, 1.0, 1e-2);
  EXPECT_NEAR(d.mean.rq_rescaled, 1.0, 1e-2);
  EXPECT_GT(d.mean.rq_fidelity, 0.99);
  EXPECT_NEAR(report->rows[0].full_tier_only->fmm, d.mean.share_quantized, 1e-9);
}

TEST_F(DiagnosticsRun, PaperVariantsMissMoreWhereLessIsReached) {
  const std::vector<DiagnosticsCell> cells = paper_variants(config(0.25));
  ASSERT_EQ(cells.size(), 12U);
  const auto report = run_diagnostics(*engine_, tokens(240, 0), tokens(41, 5), cells);
  ASSERT_TRUE(report) << report.error().message;
  const auto row = [&](const std::string& name) -> const DiagnosticsRow& {
    for (const DiagnosticsRow& r : report->rows) {
      if (r.name == name) return r;
    }
    ADD_FAILURE() << name;
    return report->rows[0];
  };
  EXPECT_EQ(row("R1").diagnostics.event_steps.size(), 40U);  // the one after step 40 is left out
  EXPECT_EQ(row("R3").diagnostics.event_steps.size(), 5U);
  EXPECT_EQ(row("R4").diagnostics.event_steps.size(), 2U);
  for (const DiagnosticsRow& r : report->rows) {
    const DiagnosticValues& v = r.diagnostics.mean;
    EXPECT_NEAR(v.share_full + v.share_quantized + v.share_evicted + v.share_local, 1.0, 1e-12)
        << r.name;
    EXPECT_NEAR(v.cum_full + v.cum_quantized + v.cum_evicted + v.cum_local, 1.0, 1e-12) << r.name;
    EXPECT_GT(v.fmm, 0.0) << r.name;
  }
  EXPECT_GT(row("R2").diagnostics.mean.fmm, row("R3").diagnostics.mean.fmm);
  EXPECT_GT(row("R3 (ceil)").diagnostics.mean.fmm, row("R3").diagnostics.mean.fmm);
  EXPECT_GT(row("R3").full_tier_only->fmm, row("R3").diagnostics.mean.fmm);
  EXPECT_GT(row("R3 Full tier only, executed").diagnostics.mean.fmm,
            row("R3").diagnostics.mean.fmm);
  // What is never read has no mass to agree about.
  EXPECT_TRUE(std::isnan(row("R3 Full tier only, executed").diagnostics.mean.qsa));
  EXPECT_TRUE(std::isnan(row("R3 Full tier only, executed").diagnostics.worst_head_qsa()));
  EXPECT_GT(row("R3").diagnostics.worst_head_qsa(), 0.0);
  EXPECT_EQ(row("R3 without promotion").moves.promotions, 0);
  EXPECT_EQ(row("R1").moves.first_demotions, 0);
}

TEST_F(DiagnosticsRun, ReadsEveryPolicy) {
  std::vector<DiagnosticsCell> cells;
  for (const PolicySpec& policy : policies()) {
    CacheConfig c = config(0.6);
    c.policy = policy.name;
    cells.push_back({policy.name, c});
  }
  const auto report = run_diagnostics(*engine_, tokens(120, 0), tokens(20, 5), cells);
  ASSERT_TRUE(report) << report.error().message;
  for (const DiagnosticsRow& row : report->rows) {
    const DiagnosticValues& v = row.diagnostics.mean;
    EXPECT_TRUE(std::isfinite(row.mean_kl())) << row.name;
    // A quantiser that keeps all tokens has no events.
    if (row.diagnostics.event_steps.empty()) {
      EXPECT_TRUE(std::isnan(v.fmm)) << row.name;
      continue;
    }
    EXPECT_NEAR(v.share_full + v.share_quantized + v.share_evicted + v.share_local, 1.0, 1e-12)
        << row.name;
    if (row.name == "full") {
      EXPECT_EQ(v.fmm, 0.0);
    } else {
      // Where everything fits in some tier, nothing can be missed.
      EXPECT_EQ(v.fmm > 0.0, v.share_evicted > 0.0) << row.name;
      EXPECT_LT(v.fmm, 1.0) << row.name;
      EXPECT_GT(v.share_full + v.share_quantized, 0.0) << row.name;
    }
  }
}

TEST_F(DiagnosticsRun, ALadderHasNoFullTierToReturnTo) {
  CacheConfig ladder = config(0.2);
  ladder.policy = "qevict+";
  const std::vector<DiagnosticsCell> cells = {{"qevict+", ladder}, {"qevict", config(0.2)}};
  const auto report = run_diagnostics(*engine_, tokens(240, 0), tokens(41, 5), cells);
  ASSERT_TRUE(report) << report.error().message;
  const PolicyDiagnostics& d = report->rows[0].diagnostics;
  EXPECT_EQ(d.mean.share_full, 0.0);
  EXPECT_EQ(d.mean.cum_full, 0.0);
  EXPECT_GT(d.mean.share_quantized, 0.1);
  EXPECT_GT(d.mean.qsa, 0.9);
  EXPECT_GT(d.mean.rq_fidelity, 0.5);
  EXPECT_LE(d.mean.rq_fidelity, 1.0);
  EXPECT_GT(d.mean.fmm, 0.0);
  EXPECT_LT(d.mean.fmm, report->rows[1].diagnostics.mean.fmm);  // more windows in as many bytes
  EXPECT_TRUE(std::isnan(d.revivals[2].rate()));
  EXPECT_TRUE(std::isnan(d.oracle_revivals[2].rate()));
  EXPECT_FALSE(report->rows[0].full_tier_only);
  EXPECT_FALSE(std::isnan(report->rows[1].diagnostics.revivals[2].rate()));
  EXPECT_TRUE(report->rows[1].full_tier_only);
}

TEST_F(DiagnosticsRun, RefusesWhatItCannotRead) {
  CacheConfig materialised = config(0.5);
  materialised.fused_attention = false;
  CacheConfig power = config(0.5);
  power.ranker = {Ranker::Kind::PNorm, 2.0};
  for (const CacheConfig& c : {materialised, power}) {
    const std::vector<DiagnosticsCell> cells = {{"x", c}};
    const auto report = run_diagnostics(*engine_, tokens(20, 0), tokens(5, 5), cells);
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code, ErrorCode::BadInput);
  }
  EXPECT_FALSE(run_diagnostics(*engine_, {}, tokens(5, 5), {}));
  EXPECT_FALSE(run_diagnostics(*engine_, tokens(20, 0), tokens(1, 5), {}));
  DiagnosticsOptions unknown;
  unknown.banned = {1 << 30};
  EXPECT_FALSE(run_diagnostics(*engine_, tokens(20, 0), tokens(5, 5), {}, unknown));
}

TEST_F(DiagnosticsRun, BannedTokensLeaveTheDistributions) {
  const std::vector<DiagnosticsCell> cells = {{"half", config(0.5)}};
  const std::vector<TokenId> prompt = tokens(60, 0), forced = tokens(6, 5);
  const auto plain = run_diagnostics(*engine_, prompt, forced, cells);
  DiagnosticsOptions options;
  options.banned = {3, 4};
  const auto banned = run_diagnostics(*engine_, prompt, forced, cells, options);
  ASSERT_TRUE(plain && banned);
  for (std::size_t i = 0; i < plain->full_nll.size(); ++i) {
    EXPECT_LT(banned->full_nll[i], plain->full_nll[i]);
    EXPECT_TRUE(std::isfinite(banned->rows[0].kl[i]));
  }
}

TEST_F(DiagnosticsRun, JsonHasNullForWhatIsNotDefined) {
  const std::vector<DiagnosticsCell> cells = {{"half", config(0.5)}};
  const auto report = run_diagnostics(*engine_, tokens(60, 0), tokens(10, 5), cells);
  ASSERT_TRUE(report);
  const DiagnosticsJson means = to_json(*report, report->rows[0], DiagnosticsDetail::Means);
  EXPECT_EQ(means["name"], "half");
  EXPECT_EQ(means["events"], 2);
  EXPECT_TRUE(means["fmm_full_horizon"].is_null());
  EXPECT_TRUE(means["fmm"].is_number());
  EXPECT_TRUE(means["lir"]["policy"]["m3"]["lir"].is_null());
  EXPECT_FALSE(means.contains("per_event"));
  const DiagnosticsJson all = to_json(*report, report->rows[0], DiagnosticsDetail::All);
  EXPECT_EQ(all["per_event"]["fmm"].size(), 2U);
  EXPECT_EQ(all["per_head"]["qsa"].size(), static_cast<std::size_t>(report->n_layers));
  EXPECT_EQ(all["step_kl"].size(), 9U);
}

}  // namespace
}  // namespace qevict
