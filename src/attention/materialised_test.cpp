// The materialised attention against a plain one over the same fp16 cache, and against the fused
// one.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/attention_test.h"

namespace qevict {
namespace {

CacheConfig materialised(double ratio, const char* policy = "qevict") {
  CacheConfig c = qevict_config(ratio);
  c.policy = policy;
  c.fused_attention = false;
  return c;
}

TEST(Materialised, EqualsPlainAttentionOnPromptAndSteps) {
  for (const RopePairing pairing : {RopePairing::Neox, RopePairing::Interleaved}) {
    for (const int n : {3, 40, 300}) {
      AttentionDriver d(small(6, 2, 16, pairing), materialised(0.4), 2, 7);
      d.prompt(n, 60, 64, true);
      for (int i = 0; i < 50; ++i) d.step(true);
    }
  }
}

TEST(Materialised, AppendedPromptAttendsToEverythingAccessible) {
  AttentionDriver d(small(4, 4, 32), materialised(0.35), 2, 11);
  d.prompt(301, 40, 128, true);
  for (int i = 0; i < 13; ++i) d.step(true);
  d.prompt(77, 30, 32, true);
  for (int i = 0; i < 20; ++i) d.step(true);
  EXPECT_GT(d.cache().layer(0).quantized().size(), 0);
  EXPECT_GT(d.cache().layer(0).full().size(), 0);
}

TEST(Materialised, FullCacheAndInaccessibleTierEqualPlainAttention) {
  CacheConfig blind = materialised(0.3);
  blind.quantized_accessible = false;
  for (const CacheConfig& config : {materialised(1.0, "full"), blind}) {
    AttentionDriver d(small(), config, 2, 17);
    d.prompt(300, 40, 64, true);
    for (int i = 0; i < 20; ++i) d.step(true);
    d.prompt(30, 40, 64, true);
  }
}

// What prompts, steps and an appended prompt give: outputs and masses, in order.
struct Trajectory {
  std::vector<std::vector<float>> outs;
  std::vector<std::vector<double>> masses;
};

Trajectory run(const CacheConfig& config, int n_threads) {
  Trajectory t;
  AttentionDriver d(small(6, 2, 32), config, n_threads, 21);
  const auto keep = [&](const std::vector<std::vector<float>>& outs) {
    t.outs.insert(t.outs.end(), outs.begin(), outs.end());
    for (int layer = 0; layer < d.cache().n_layers(); ++layer) {
      t.masses.push_back(d.masses(layer));
    }
  };
  keep(d.prompt(500, 64, 200, false));
  for (int i = 0; i < 20; ++i) keep(d.step(false));
  keep(d.prompt(100, 64, 48, false));
  for (int i = 0; i < 10; ++i) keep(d.step(false));
  return t;
}

TEST(Materialised, AgreesWithTheFusedKernelsOnOutputsAndMasses) {
  const Ranker decay{Ranker::Kind::Decay, 0.9};
  const Ranker squares{Ranker::Kind::PNorm, 2.0};
  std::vector<CacheConfig> configs = {materialised(1.0, "full"), materialised(0.3),
                                      materialised(0.3), materialised(0.3)};
  configs[2].ranker = decay;
  configs[3].ranker = squares;
  for (CacheConfig config : configs) {
    const std::string what = config.policy + " " + config.ranker.to_string() + " ";
    const Trajectory separate = run(config, 1);
    config.fused_attention = true;
    const Trajectory fused = run(config, 1);
    ASSERT_EQ(separate.outs.size(), fused.outs.size());
    for (std::size_t i = 0; i < fused.outs.size(); ++i) {
      double worst = 0.0;
      for (std::size_t c = 0; c < fused.outs[i].size(); ++c) {
        worst = std::max<double>(worst, std::fabs(separate.outs[i][c] - fused.outs[i][c]));
      }
      // Dequantised keys are rounded to fp16: by up to 2^-7 on the biased channel.
      EXPECT_LT(worst, config.policy == "full" ? 2e-5 : 5e-3) << what << i;
    }
    ASSERT_EQ(separate.masses.size(), fused.masses.size());
    for (std::size_t i = 0; i < fused.masses.size(); ++i) {
      ASSERT_EQ(separate.masses[i].size(), fused.masses[i].size());
      for (std::size_t w = 0; w < fused.masses[i].size(); ++w) {
        ASSERT_NEAR(separate.masses[i][w], fused.masses[i][w], 2e-3 * fused.masses[i][w] + 1e-7)
            << what << i << " window " << w;
      }
    }
  }
}

TEST(Materialised, SameBitsForAnyNumberOfThreads) {
  const Trajectory one = run(materialised(0.3), 1);
  for (const int n_threads : {2, 3}) {
    const Trajectory more = run(materialised(0.3), n_threads);
    EXPECT_EQ(one.outs, more.outs);
    EXPECT_EQ(one.masses, more.masses);
  }
}

TEST(Materialised, CountsItsDenseCopyAndScores) {
  AttentionDriver d(small(8, 2, 64), materialised(0.3), 1, 3);
  d.prompt(1000, 64, 128, false);
  const std::size_t before = d.attention().workspace_bytes();
  d.step(false);
  const LayerCache& layer = d.cache().layer(0);
  const std::size_t rows =
      static_cast<std::size_t>(layer.full().size() + layer.quantized().size()) * 8 +
      layer.recent().n_tokens();
  // K and V in fp16 and a row of scores for each query head.
  EXPECT_GE(d.attention().workspace_bytes(), before + rows * (2 * 2 * 64 * 2 + 8 * 4));
  const std::size_t warm = d.attention().workspace_bytes();
  for (int i = 0; i < 6; ++i) d.step(false);
  EXPECT_EQ(d.attention().workspace_bytes(), warm);
  EXPECT_GE(d.attention().workspace_peak_bytes(), warm);
}

}  // namespace
}  // namespace qevict
