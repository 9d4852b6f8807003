#include "eval/diagnostics_analysis.h"

#include <gtest/gtest.h>

#include <cmath>

namespace qevict {
namespace {

// One layer, two heads, one sink, windows of two tokens; a prompt of 6 tokens, 3 steps. Event 0
// keeps window 0 in Quantized and evicts window 1; event 1, after step 2, puts window 2 into Full.
//   position  0    1 2   3 4   5 6   7 8
//             sink  w0    w1    w2    w3
AttentionRecord small_attention() {
  AttentionRecord full{1, 2, 6, 3, {}, {}};
  full.prompt = {9, 1, 1, 3, 2, 1,  //
                 9, 1, 2, 1, 1, 1};
  full.steps = {4, 1, 1, 2, 0, 1, 1, 0, 0,  //
                3, 1, 0, 1, 1, 1, 1, 2, 0,  //
                1, 1, 1, 1, 1, 1, 1, 1, 2,  //
                2, 0, 2, 1, 1, 2, 2, 0, 0,  //
                3, 2, 0, 0, 1, 1, 1, 2, 0,  //
                2, 1, 0, 1, 0, 1, 2, 1, 2};
  return full;
}

PolicyRecord small_policy() {
  PolicyRecord policy;
  policy.n_layers = 1;
  policy.n_heads = 2;
  policy.n_sink = 1;
  policy.window = 2;
  policy.full_quota = 1;
  UnitEvent first, second;
  first.n_tokens = 6;
  first.local_begin = 5;
  first.quantized = {0};
  first.quantized_mass = {2, 3};    // of each head
  first.step_mass = {5, 1, 3, 0};   // [steps][heads]
  first.step_local = {8, 2, 4, 2};  // the same
  second.step = 2;
  second.n_tokens = 8;
  second.local_begin = 7;
  second.full = {2};
  second.quantized = {0};
  second.quantized_mass = {6, 9};
  policy.units = {{first, second}};
  return policy;
}

TEST(Diagnose, MissedMassOfTheStepsLeft) {
  const PolicyDiagnostics d = diagnose(small_attention(), small_policy());
  ASSERT_EQ(d.event_steps, (std::vector<int>{0, 2}));
  const DiagnosticValues& first = d.per_event[0];
  EXPECT_NEAR(first.fmm, 10.0 / 27.0, 1e-12);
  EXPECT_NEAR(first.fmm_with_sink, 10.0 / 42.0, 1e-12);
  EXPECT_NEAR(first.fmm_per_head, (6.0 / 14.0 + 4.0 / 13.0) / 2.0, 1e-12);
  EXPECT_NEAR(first.share_quantized, 10.0 / 27.0, 1e-12);
  EXPECT_NEAR(first.share_local, 7.0 / 27.0, 1e-12);
  EXPECT_NEAR(first.share_full, 0.0, 1e-12);
  EXPECT_TRUE(std::isnan(first.fmm_full_horizon));
  EXPECT_TRUE(std::isnan(first.fmm_whole_windows));
  EXPECT_TRUE(std::isnan(first.fmm_authors));
  EXPECT_NEAR(d.per_event[1].fmm, 3.0 / 13.0, 1e-12);
  EXPECT_NEAR(d.mean.fmm, (10.0 / 27.0 + 3.0 / 13.0) / 2.0, 1e-12);
  EXPECT_NEAR(d.per_layer[0].fmm, d.mean.fmm, 1e-12);
  ASSERT_EQ(d.per_head.size(), 2U);
  EXPECT_NEAR(d.per_head[1].fmm[0], 4.0 / 13.0, 1e-12);
}

TEST(Diagnose, AttentionSoFarByTier) {
  const PolicyDiagnostics d = diagnose(small_attention(), small_policy());
  EXPECT_NEAR(d.per_event[0].cum_quantized, 5.0 / 14.0, 1e-12);
  EXPECT_NEAR(d.per_event[0].cum_evicted, 7.0 / 14.0, 1e-12);
  EXPECT_NEAR(d.per_event[0].cum_local, 2.0 / 14.0, 1e-12);
  EXPECT_NEAR(d.per_event[1].cum_full, 12.0 / 42.0, 1e-12);
  EXPECT_NEAR(d.per_event[1].cum_quantized, 12.0 / 42.0, 1e-12);
  EXPECT_NEAR(d.per_event[1].cum_evicted, 14.0 / 42.0, 1e-12);
  EXPECT_NEAR(d.per_event[1].cum_local, 4.0 / 42.0, 1e-12);
}

TEST(Diagnose, QuantizedWindowsUnderThePolicyAndUnderTheFullCache) {
  const PolicyDiagnostics d = diagnose(small_attention(), small_policy());
  EXPECT_NEAR(d.per_event[0].rq, 1.0, 1e-12);
  EXPECT_NEAR(d.per_event[1].rq, 15.0 / 12.0, 1e-12);
  EXPECT_NEAR(d.per_event[1].rq_overlap, 1.0, 1e-12);
  EXPECT_NEAR(d.per_event[0].rq_interval, 9.0 / 7.0, 1e-12);
  // The local zone has 6 and 8 of the full cache's mass, 12 and 4 of the policy's: 8 and 1 become 4
  // and 2, beside 3 and 4.
  EXPECT_NEAR(d.per_event[0].rq_rescaled, 6.0 / 7.0, 1e-12);
  EXPECT_NEAR(d.per_event[0].rq_fidelity, 5.0 / 7.0, 1e-12);
  // By step: head 0 has 1.25 of 2, then 3 of 1; head 1 has 2 of 2, then 0 of 2.
  EXPECT_NEAR(d.per_event[0].rq_step, (0.625 + 1.0 + 1.0 + 0.0) / 4.0, 1e-12);
  EXPECT_TRUE(std::isnan(d.per_event[1].rq_interval));
  EXPECT_NEAR(d.per_event[1].churn, 0.5, 1e-12);
  EXPECT_TRUE(std::isnan(d.per_event[0].churn));
}

TEST(Diagnose, WorstHeadIsTheSmallestCosineOverEvents) {
  AttentionRecord full = small_attention();
  PolicyRecord policy = small_policy();
  std::vector<UnitEvent>& events = policy.units[0];
  events[1].full = {};
  events[1].quantized = {0, 2};
  events[1].quantized_mass = {5, 5, 7, 0};  // the full cache has 5, 5 and 7, 7
  const PolicyDiagnostics d = diagnose(full, policy);
  EXPECT_NEAR(d.per_event[1].qsa_head_min, std::sqrt(0.5), 1e-12);
  EXPECT_NEAR(d.mean.qsa_head_min, std::sqrt(0.5), 1e-12);
  EXPECT_NEAR(d.worst_head_qsa(), (1.0 + std::sqrt(0.5)) / 2.0, 1e-12);
  EXPECT_NEAR(d.per_event[1].qsa, (12.0 * 12 + 5 * 12) / (13.0 * std::hypot(12.0, 12.0)), 1e-12);
}

TEST(Diagnose, SpellsOfThePolicyAndOfTheOracle) {
  const PolicyDiagnostics d = diagnose(small_attention(), small_policy());
  EXPECT_EQ(d.revivals[0].eligible, 2);  // windows 0 and 1; window 2 went straight to Full
  EXPECT_EQ(d.revivals[0].rescued, 0);
  // By attention so far window 1 (7 of 5 and 7, then 14 of 12, 14, 12) stays in Full.
  EXPECT_EQ(d.oracle_revivals[0].eligible, 2);
  EXPECT_EQ(d.oracle_revivals[1].eligible, 1);
}

TEST(Diagnose, WithoutTheQuantizedTierItsMassIsMissedToo) {
  const PolicyDiagnostics d = diagnose(small_attention(), small_policy(), false);
  EXPECT_NEAR(d.per_event[0].fmm, 20.0 / 27.0, 1e-12);
  EXPECT_NEAR(d.per_event[0].share_evicted, 10.0 / 27.0, 1e-12);
  EXPECT_TRUE(std::isnan(d.mean.qsa));
  PolicyRecord hidden = small_policy();
  hidden.quantized_accessible = false;
  EXPECT_NEAR(diagnose(small_attention(), hidden).per_event[0].fmm, 20.0 / 27.0, 1e-12);
}

TEST(Diagnose, AnEventAfterTheLastStepCountsForSpellsOnly) {
  PolicyRecord policy = small_policy();
  policy.units[0][1].step = 3;
  policy.units[0][0].step_mass = {5, 1, 3, 0, 2, 1};
  policy.units[0][0].step_local = {8, 2, 4, 2, 3, 2};
  const PolicyDiagnostics d = diagnose(small_attention(), policy);
  EXPECT_EQ(d.event_steps.size(), 1U);
  EXPECT_EQ(d.revivals[1].eligible, 2);
}

TEST(Diagnose, HeadsWithTheirOwnSelectionsAreSummedByLayer) {
  PolicyRecord policy = small_policy();
  policy.units_per_layer = 2;
  UnitEvent keeps, evicts;
  keeps.n_tokens = evicts.n_tokens = 6;
  keeps.local_begin = evicts.local_begin = 5;
  keeps.full = {0, 1};
  evicts.full = {0};
  policy.units = {{keeps}, {evicts}};
  const PolicyDiagnostics d = diagnose(small_attention(), policy);
  EXPECT_NEAR(d.mean.fmm, 4.0 / 27.0, 1e-12);
  EXPECT_NEAR(d.mean.fmm_per_head, 2.0 / 13.0, 1e-12);
}

TEST(Diagnose, AsTheAuthorsFeedItAPartialWindowCountsWhole) {
  // Windows of 4 tokens, 6 of the prompt: window 0 is evicted, window 1 partial. Each step looks at
  // the prompt's tokens once, at every newer one twice.
  constexpr int kPrompt = 6, kSteps = 33;
  AttentionRecord full{1, 1, kPrompt, kSteps, std::vector<double>(kPrompt, 1.0), {}};
  for (int step = 1; step <= kSteps; ++step) {
    for (int i = 0; i < kPrompt + kSteps; ++i) {
      full.steps.push_back(i < kPrompt ? 1.0F : i < kPrompt + step ? 2.0F : 0.0F);
    }
  }
  PolicyRecord policy;
  policy.n_layers = policy.n_heads = 1;
  policy.window = 4;
  UnitEvent event;
  event.n_tokens = kPrompt;
  event.local_begin = 4;
  policy.units = {{event}};
  const DiagnosticValues mean = diagnose(full, policy).mean;
  EXPECT_NEAR(mean.fmm_full_horizon, 128.0 / 192.0, 1e-12);
  // Position 6 exists from step 1 on, position 7 from step 2 on.
  EXPECT_NEAR(mean.fmm_whole_windows, 128.0 / (192.0 + 64.0 + 62.0), 1e-12);
  EXPECT_NEAR(mean.fmm_authors, 128.0 / (192.0 + 64.0 + 64.0), 1e-12);
}

}  // namespace
}  // namespace qevict
