#include <gtest/gtest.h>

#include <cmath>

#include "policies/one_shot.h"
#include "policies/selector_test.h"

namespace qevict {
namespace {

TEST(ExpectedAttention, AsksForTheMomentsOfQueriesBehindTheSinks) {
  const SelectorNeeds needs = make_selector("expected_attention", {{"n_sink", "7"}})->needs();
  EXPECT_TRUE(needs.query_moments);
  EXPECT_EQ(needs.moments_from, 7);
  EXPECT_EQ(needs.last_queries, 0);
}

TEST(ExpectedAttention, KeepsTheSinksWhereverAHeadStillHoldsThem) {
  const PromptScene scene({.n_tokens = 60},
                          [](int head, TokenPos p) { return head == 0 || p == 2 || p > 20; });
  const KeptTokens kept = select(*make_selector("expected_attention"), scene.view, 10);
  EXPECT_EQ(std::vector<int>(kept[0].begin(), kept[0].begin() + 4), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(kept[1].front(), 0);  // position 2
  EXPECT_EQ(kept[1].size(), 10U);
}

TEST(ExpectedAttention, AQueryMeanOfOneDirectionPrefersKeysThatPointThere) {
  PromptScene scene({.n_heads = 1, .n_kv_heads = 1, .head_dim = 2, .n_tokens = 30});
  // One slow pair: the averaged rotation is almost that of the next position.
  RopeSpec rope{RopePairing::Neox, 2, {1e-9}};
  const std::vector<double> mean = {5.0, 0.0}, covariance(4, 0.0);
  scene.view.rope = &rope;
  scene.view.queries = {mean.data(), covariance.data(), 30};
  for (int i = 0; i < 60; ++i) scene.k(0)[i] = 0.0F;
  scene.k(0)[2 * 17] = 3.0F;
  const ExpectedQueries queries = expected_queries(scene.view, 16, true);
  EXPECT_NEAR(queries.mean[0], 5.0, 1e-5);
  const HeadScores scores = expected_attention_scores(scene.view, queries, {.use_vnorm = false});
  EXPECT_EQ(std::ranges::max_element(scores[0].begin() + 4, scores[0].end()),
            scores[0].begin() + 17);
  double sum = 0.0;
  for (int i = 4; i < 30; ++i) sum += scores[0][i];
  EXPECT_NEAR(sum, 1.0, 1e-5);
}

TEST(ExpectedAttention, TurnsInterleavedPairsToo) {
  PromptScene scene({.n_heads = 1, .n_kv_heads = 1, .head_dim = 4, .n_tokens = 10});
  const std::vector<double> mean = {1.0, 0.0, 0.0, 1.0};
  const double quarter = std::acos(-1.0) / 2 / 10;  // a quarter turn at position 10
  for (const RopePairing pairing : {RopePairing::Neox, RopePairing::Interleaved}) {
    RopeSpec rope{pairing, 4, {quarter, 0.0}};
    scene.view.rope = &rope;
    scene.view.queries = {mean.data(), nullptr, 10};
    const std::vector<float> turned = expected_queries(scene.view, 1, false).mean;
    const std::vector<float> expected = pairing == RopePairing::Neox
                                            ? std::vector<float>{0.0F, 0.0F, 1.0F, 1.0F}
                                            : std::vector<float>{0.0F, 1.0F, 0.0F, 1.0F};
    for (int c = 0; c < 4; ++c) EXPECT_NEAR(turned[c], expected[c], 1e-6);
  }
}

TEST(ExpectedAttention, WithoutQueriesOnlyValuesCount) {
  // The peer refuses prompts of sinks alone.
  PromptScene scene({.n_heads = 2, .n_kv_heads = 2, .n_tokens = 12});
  scene.view.queries = {nullptr, nullptr, 0};
  for (int c = 0; c < 16; ++c) scene.v(0)[9 * 16 + c] = 100.0F;
  const KeptTokens kept = select(*make_selector("expected_attention"), scene.view, 5);
  EXPECT_EQ(kept[0], (std::vector<int>{0, 1, 2, 3, 9}));
}

}  // namespace
}  // namespace qevict
