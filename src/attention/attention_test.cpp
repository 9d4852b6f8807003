// TieredAttention against a plain double-precision attention over whatever the cache makes
// accessible.
#include "attention/attention_test.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace qevict {
namespace {

using Driver = AttentionDriver;

TEST(TieredAttention, EqualsPlainAttentionOnPromptAndSteps) {
  for (const RopePairing pairing : {RopePairing::Neox, RopePairing::Interleaved}) {
    for (const int n : {3, 40, 300}) {
      Driver d(small(6, 2, 16, pairing), qevict_config(0.4), 2, 7);
      d.prompt(n, 60, 64, true);
      for (int i = 0; i < 50; ++i) d.step(true);
    }
  }
}

TEST(TieredAttention, AppendedPromptAttendsToEverythingAccessible) {
  Driver d(small(4, 4, 32), qevict_config(0.35), 2, 11);
  d.prompt(301, 40, 128, true);
  for (int i = 0; i < 13; ++i) d.step(true);
  d.prompt(77, 30, 32, true);
  for (int i = 0; i < 20; ++i) d.step(true);
  EXPECT_GT(d.cache().layer(0).quantized().size(), 0);
  EXPECT_GT(d.cache().layer(0).full().size(), 0);
}

TEST(TieredAttention, HeadsThatAreRoutedApartAttendToTheirOwnTiers) {
  Driver d(small(6, 3, 32), qevict_config(0.35), 2, 11, 2, true);
  d.prompt(301, 40, 128, true);
  for (int i = 0; i < 13; ++i) d.step(true);
  d.prompt(77, 30, 32, true);
  for (int i = 0; i < 20; ++i) d.step(true);
  const KvCache& cache = d.cache();
  EXPECT_GT(cache.unit(0, 2).quantized().size(), 0);
  const auto kept = [&](int u) {
    const std::span<const WindowId> ids = cache.unit(1, u).quantized().ids();
    return std::set<WindowId>(ids.begin(), ids.end());
  };
  EXPECT_NE(kept(0), kept(1));
}

TEST(TieredAttention, WindowsOfOneTokenWorkByLayerAndByHead) {
  for (const bool per_head : {false, true}) {
    CacheConfig config = qevict_config(0.3);
    config.window = 1;
    config.quant_share = 0.0;
    Geometry g = small(4, 2, 16);
    g.window = 1;
    Driver d(g, config, 2, 13, 2, per_head);
    d.prompt(203, 40, 64, true);
    for (int i = 0; i < 40; ++i) d.step(true);
    d.prompt(61, 20, 32, true);
    for (int i = 0; i < 20; ++i) d.step(true);
    EXPECT_GT(d.cache().unit(1, 0).n_evicted(), 100);
  }
}

TEST(TieredAttention, AHeadsMassIsTheMeanOfItsQueryHeads) {
  CacheConfig config = qevict_config(1.0);
  config.n_sink = 0;
  Driver whole(small(6, 3, 16), config, 2, 5);
  Driver heads(small(6, 3, 16), config, 2, 5, 2, true);
  EXPECT_EQ(whole.prompt(203, 64, 64, false), heads.prompt(203, 64, 64, false));
  for (int i = 0; i < 60; ++i) EXPECT_EQ(whole.step(false), heads.step(false));
  std::vector<double> sum(whole.masses(1).size());
  for (int u = 0; u < 3; ++u) {
    EXPECT_NEAR(heads.mass(0, u), 263.0, 1e-3);
    const std::vector<double> mass = heads.masses(1, u);
    ASSERT_EQ(mass.size(), sum.size());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += mass[i] / 3;
  }
  for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], whole.masses(1)[i], 1e-4);
}

TEST(TieredAttention, MassOfAllRowsAddsUp) {
  // A budget that covers everything: no mass is evicted, only sinks are left out.
  CacheConfig config = qevict_config(1.0);
  config.n_sink = 0;
  Driver d(small(), config, 2, 5);
  d.prompt(203, 64, 64, false);
  EXPECT_NEAR(d.mass(0), 203.0, 1e-3);
  for (int i = 0; i < 60; ++i) d.step(false);
  EXPECT_NEAR(d.mass(1), 263.0, 1e-3);
}

// Mass of the last query only, at any time: what TOVA ranks by.
TEST(TieredAttention, OnlyTheLastRowsOfAPromptMayAddMass) {
  struct LastQuery final : Scorer {
    Needs needs() const override { return {.mass = true, .mass_decay = 0.0, .prompt_rows = 3}; }
    void score(const LayerView&, std::span<float>) const override {}
  };
  CacheConfig config = qevict_config(1.0);
  config.n_sink = 0;
  PolicySpec policy = *find_policy("qevict");
  policy.make_scorer = [](const CacheConfig&) { return std::make_unique<LastQuery>(); };
  std::vector<double> fused;
  for (const bool fuse : {true, false}) {
    config.fused_attention = fuse;
    Driver d(small(), config, policy, 2, 5, 2);
    const auto whole = Driver(small(), config, 2, 5).prompt(66, 64, 64, false);
    // The last three rows are in two tiles: 32 .. 63 and the first of the next block.
    EXPECT_EQ(d.prompt(66, 64, 64, false), whole);
    EXPECT_NEAR(d.mass(1), 3.0, 1e-4);
    if (fuse) fused = d.masses(1);
    for (std::size_t i = 0; !fuse && i < fused.size(); ++i) {
      EXPECT_NEAR(d.masses(1)[i], fused[i], 1e-4);
    }
    d.step(false);
    EXPECT_NEAR(d.mass(1), 1.0, 1e-4);
    d.prompt(2, 64, 64, false);
    EXPECT_NEAR(d.mass(1), 2.0, 1e-4);
  }
}

TEST(TieredAttention, DecayCountsAPromptAsOneStep) {
  CacheConfig config = qevict_config(1.0);
  config.n_sink = 0;
  config.ranker = {Ranker::Kind::Decay, 0.5};
  Driver d(small(), config, 2, 5);
  d.prompt(100, 64, 64, false);
  EXPECT_NEAR(d.mass(0), 100.0, 1e-3);
  d.step(false);
  EXPECT_NEAR(d.mass(0), 51.0, 1e-3);
  d.prompt(30, 64, 16, false);
  EXPECT_NEAR(d.mass(0), 25.5 + 30.0, 1e-3);
}

class TieredAttentionThreads : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(PerHead, TieredAttentionThreads, testing::Bool());

TEST_P(TieredAttentionThreads, SameBitsForAnyNumber) {
  std::vector<std::vector<std::vector<float>>> runs;
  std::vector<double> mass;
  for (const int threads : {1, 2, 3}) {
    Driver d(small(8, 4, 64), qevict_config(0.3), threads, 21, 2, GetParam());
    std::vector<std::vector<float>> all;
    const auto keep = [&](const std::vector<std::vector<float>>& outs) {
      all.insert(all.end(), outs.begin(), outs.end());
    };
    keep(d.prompt(500, 64, 192, false));
    for (int i = 0; i < 20; ++i) keep(d.step(false));
    keep(d.prompt(100, 64, 256, false));
    for (int i = 0; i < 10; ++i) keep(d.step(false));
    runs.push_back(all);
    mass.push_back(d.mass(1, d.cache().units_per_layer() - 1));
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_EQ(runs[0], runs[2]);
  EXPECT_EQ(mass[0], mass[1]);
  EXPECT_EQ(mass[0], mass[2]);
}

TEST(TieredAttention, AmpleBudgetGivesTheFullCachesBits) {
  std::vector<std::vector<std::vector<float>>> runs;
  for (const char* policy : {"full", "qevict"}) {
    CacheConfig config = qevict_config(1.0);
    config.policy = policy;
    Driver d(small(8, 2, 64), config, 2, 33);
    std::vector<std::vector<float>> all = d.prompt(600, 64, 256, false);
    for (int i = 0; i < 40; ++i) {
      for (const std::vector<float>& out : d.step(false)) all.push_back(out);
    }
    runs.push_back(all);
  }
  EXPECT_EQ(runs[0], runs[1]);
}

TEST(TieredAttention, ReportsTheLayerWhoseValuesDoNotFit) {
  Driver d(small(), qevict_config(0.5), 1, 3, 1);
  d.prompt(20, 10, 32, false);
  EXPECT_EQ(d.attention().take_nonfinite_layer(), -1);
  d.attention().begin_step();
  d.cache().begin_step();
  std::vector<float> q(6 * 16, 0.1F), kv(2 * 16, 0.1F), out(6 * 16);
  kv[5] = NAN;
  const QkvBlock qkv{q.data(), kv.data(), kv.data(), 1};
  d.attention().prepare(0, qkv, 0, 1);
  EXPECT_EQ(d.attention().take_nonfinite_layer(), 0);
}

TEST(TieredAttention, InaccessibleQuantizedTierIsNotAttendedTo) {
  CacheConfig config = qevict_config(0.3);
  config.quantized_accessible = false;
  Driver d(small(), config, 2, 17);
  d.prompt(300, 40, 64, true);
  for (int i = 0; i < 20; ++i) d.step(true);
  d.prompt(30, 40, 64, true);
}

}  // namespace
}  // namespace qevict
