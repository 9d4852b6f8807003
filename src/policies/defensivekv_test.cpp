#include <gtest/gtest.h>

#include <numeric>

#include "policies/one_shot.h"
#include "policies/selector_test.h"

namespace qevict {
namespace {

TEST(DefensiveKv, ATokenThatOneQueryNeedsCountsAsMuchAsThatQuerySays) {
  PromptScene scene({.n_heads = 1, .n_kv_heads = 1, .n_tokens = 200, .n_last = 32});
  for (float& x : scene.q) x *= 0.01F;
  for (int c = 0; c < 16; ++c) {
    scene.q[5 * 16 + c] = 20.0F * scene.k(0)[40 * 16 + c];  // one query out of 32 looks at token 40
  }
  const DefensiveParts parts = defensive_parts(scene.view, 32, 1);
  EXPECT_GT(parts.defensive[0][40], 0.9F);
  EXPECT_LT(parts.average[0][40], 0.05F);
  const auto lowest = *std::ranges::min_element(parts.defensive[0]);
  const auto mean =
      std::accumulate(parts.defensive[0].begin(), parts.defensive[0].end(), 0.0) / 168;
  EXPECT_GT(lowest, 0.0F);
  EXPECT_LT(lowest, mean);  // raised to the mean before the raising
}

TEST(DefensiveKv, PoolingKeepsEachRowsSum) {
  const PromptScene scene({.n_heads = 1, .n_kv_heads = 1, .n_tokens = 90, .n_last = 1});
  // With one query the largest over the queries is the row itself; kernel 1 leaves it as it is.
  const auto sum = [&](int kernel) {
    Observer observer(scene.view, 1);
    observer.probabilities(0);
    const std::vector<float> pooled = pool(
        {observer.row(0), static_cast<std::size_t>(observer.past(0))}, kernel, Pooling::Average);
    return std::accumulate(pooled.begin(), pooled.end(), 0.0);
  };
  EXPECT_LT(sum(5), sum(1));  // ends lose to the zeros beyond them
  const HeadScores defensive = defensive_parts(scene.view, 1, 5).defensive;
  const auto raised = std::accumulate(defensive[0].begin(), defensive[0].end(), 0.0);
  EXPECT_GE(raised, sum(1) - 1e-5);
}

TEST(DefensiveKv, PinsNothingWhereTheLimitWouldBeNegative) {
  const PromptScene scene({.n_tokens = 190, .n_last = 32});
  const DefensiveParts parts = defensive_parts(scene.view, 32, 5);
  std::vector<int> counts;
  // (190 - 32) * 20 % - 32 = -0.4, and far below.
  defensive_scores(scene.view, parts, 32, 38.0, &counts);
  defensive_scores(scene.view, parts, 32, 33.0, &counts);
  EXPECT_EQ(counts, (std::vector<int>{0, 0, 0, 0}));
  counts.clear();
  defensive_scores(scene.view, parts, 32, 100.0, &counts);
  EXPECT_GT(counts[0], 0);
  EXPECT_LE(counts[0], 51);  // 158 * 100 / 190 - 32
}

TEST(DefensiveKv, ValueNormsAreComparedBetweenTheHeadsThatHoldAToken) {
  const auto scores_of = [](const std::function<bool(int, TokenPos)>& holds) {
    PromptScene scene({.n_heads = 2, .n_kv_heads = 2, .n_tokens = 20, .n_last = 4}, holds);
    for (int h = 0; h < 2; ++h) std::ranges::fill(scene.norms(h), h == 0 ? 3.0F : 1.0F);
    std::ranges::fill(scene.q, 0.0F);
    DefensiveParts parts = defensive_parts(scene.view, 4, 1);
    for (auto& head : parts.defensive) std::ranges::fill(head, 1.0F);
    return defensive_scores(scene.view, parts, 4, 5.0, nullptr);
  };
  const HeadScores both = scores_of({});
  EXPECT_FLOAT_EQ(both[0][2], 0.75F);
  EXPECT_FLOAT_EQ(both[1][2], 0.25F);
  const HeadScores one = scores_of([](int head, TokenPos p) { return head == 0 || p != 2; });
  EXPECT_FLOAT_EQ(one[0][2], 0.5F);
  EXPECT_FLOAT_EQ(one[0][3], 0.75F);
}

TEST(DefensiveKv, ScoresOfAPastWithoutProbabilityAreZero) {
  // The peer divides by zero here.
  PromptScene scene({.n_heads = 1, .n_kv_heads = 1, .n_tokens = 20, .n_last = 2});
  std::fill_n(scene.k(0), 20 * 16, 0.0F);
  for (int i = 18 * 16; i < 20 * 16; ++i) scene.k(0)[i] = 100.0F;
  std::ranges::fill(scene.q, 100.0F);
  const DefensiveParts parts = defensive_parts(scene.view, 2, 5);
  const HeadScores scores = defensive_scores(scene.view, parts, 2, 10.0, nullptr);
  for (const float score : scores[0]) EXPECT_NEAR(score, 0.0F, 1e-30F);
}

TEST(LayerDefensiveKv, LayersShareOneBudgetByTheirScores) {
  const std::vector<HeadScores> layers = {{{9, 8}, {7, 1}}, {{6, 0}, {0, 0}}};
  EXPECT_EQ(layer_shares(layers, 4), (std::vector<std::int64_t>{3, 1}));
  const auto selector = make_selector("layer_defensivekv");
  ASSERT_TRUE(selector->over_layers());
  std::vector<KeptTokens> kept(2, KeptTokens(2));
  selector->select_over_layers(layers, 1, kept);
  EXPECT_EQ(kept[0], (KeptTokens{{0, 1}, {0}}));
  EXPECT_EQ(kept[1], (KeptTokens{{0}, {}}));
}

TEST(LayerDefensiveKv, ScoresALayerAsDefensiveKvDoes) {
  const PromptScene scene({.n_tokens = 150, .n_last = 32});
  const auto selector = make_selector("layer_defensivekv");
  HeadScores scores;
  selector->score(scene.view, 60, scores);
  std::vector<KeptTokens> kept(1, KeptTokens(2));
  selector->select_over_layers(std::span(&scores, 1), 60, kept);
  EXPECT_EQ(kept[0], select(*make_selector("defensivekv"), scene.view, 60));
}

}  // namespace
}  // namespace qevict
