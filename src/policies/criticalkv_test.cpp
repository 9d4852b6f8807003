#include <gtest/gtest.h>

#include "policies/one_shot.h"
#include "policies/selector_test.h"

namespace qevict {
namespace {

TEST(CriticalKv, TheFirstShareIgnoresValuesTheRestWeighsThem) {
  const std::vector<float> base = {0.9F, 0.5F, 0.4F, 0.3F, 0.0F};
  const std::vector<float> weights = {0.0F, 1.0F, 1.0F, 9.0F, 1e6F};
  EXPECT_EQ(critical_best(base, weights, 2, 1, 0.0), (std::vector<int>{0, 3}));
  EXPECT_EQ(critical_best(base, weights, 2, 0, 0.0), (std::vector<int>{1, 3}));
  // epsilon lets a token without attention in by its value alone.
  EXPECT_EQ(critical_best(base, weights, 2, 1, 1e-4), (std::vector<int>{0, 4}));
}

TEST(CriticalKv, WeightsAreTheMeanOfTheGroup) {
  PromptScene scene({.n_heads = 2, .n_kv_heads = 1, .n_tokens = 2});
  scene.norms(0) = {1.0F, 2.0F};
  scene.norms(1) = {3.0F, 6.0F};
  const std::vector<std::span<const float>> norms = {scene.norms(0), scene.norms(1)};
  scene.view.value_norms = norms;
  EXPECT_EQ(value_weights(scene.view), (HeadScores{{2.0F, 4.0F}}));
}

TEST(CriticalKv, AsksForValueNorms) {
  for (const char* policy : {"criticalkv", "criticaladakv", "defensivekv", "layer_defensivekv"}) {
    EXPECT_TRUE(make_selector(policy)->needs().value_norms) << policy;
  }
  for (const char* policy : {"snapkv", "adakv", "knorm", "expected_attention"}) {
    EXPECT_FALSE(make_selector(policy)->needs().value_norms) << policy;
  }
}

TEST(CriticalAdaKv, HeadsHaveAdaKvsBudgetsAndChooseByValue) {
  const HeadScores base = {{9, 8, 7, 6}, {1, 2, 0, 0}};
  const HeadScores weights = {{1, 1, 1, 1}, {1, 1, 1, 900}};
  KeptTokens kept(2);
  critical_adakv_select(base, weights, 2, 0, 0.5, 1e-2, kept);
  EXPECT_EQ(kept, (KeptTokens{{0, 1, 2, 3}, {}}));
  kept.assign(2, {});
  critical_adakv_select(base, weights, 3, 0, 0.0, 1e-2, kept);
  EXPECT_EQ(kept, (KeptTokens{{0, 1, 2, 3}, {1, 3}}));
  kept.assign(2, {});
  critical_adakv_select(base, weights, 3, 2, 0.0, 1e-2, kept);  // both are safe
  EXPECT_EQ(kept, (KeptTokens{{0, 1, 2, 3}, {0, 1}}));
}

}  // namespace
}  // namespace qevict
