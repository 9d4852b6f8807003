#include <gtest/gtest.h>

#include "policies/one_shot.h"
#include "policies/selector_test.h"

namespace qevict {
namespace {

TEST(PyramidKv, BudgetsFallFromLayerToLayerAndAverageToTheAsked) {
  int total = 0, before = 1 << 20;
  for (int layer = 0; layer < 24; ++layer) {
    const int budget = pyramid_budget(1600.0, 4096, layer, 24, 64, 20);
    EXPECT_LT(budget, before);
    EXPECT_GE(budget, 64);
    before = budget;
    total += budget;
  }
  EXPECT_NEAR(total, 24 * 1600, 12);
}

TEST(PyramidKv, IsFlatWhereTheLineWouldLeaveTheLimits) {
  EXPECT_EQ(pyramid_budget(100.0, 4096, 0, 24, 64, 20), 100);  // the last layer below its window
  EXPECT_EQ(pyramid_budget(64.0, 65, 3, 24, 64, 20), 64);      // a prompt hardly longer
}

TEST(PyramidKv, FactoryBudgetsAreWholeNumbersAndOneLayerDoesNotDivideByZero) {
  EXPECT_EQ(factory_pyramid_budget(64, 300, 0, 8, 16, 20), 110);
  EXPECT_EQ(factory_pyramid_budget(64, 300, 7, 8, 16, 20), 19);
  EXPECT_EQ(factory_pyramid_budget(64, 63, 0, 8, 16, 20), 63);  // nothing to remove
  EXPECT_EQ(factory_pyramid_budget(64, 300, 0, 1, 16, 20), 64);
  EXPECT_EQ(pyramid_budget(1600.0, 4096, 0, 1, 64, 20), 3120);
}

TEST(PyramidKv, RoundingNeverAddsToTheBudget) {
  PromptScene scene({.n_heads = 1, .n_kv_heads = 1, .n_tokens = 300, .n_last = 16});
  scene.view.n_layers = 8;
  const auto selector = make_selector("pyramidkv", {{"flavour", "factory"}, {"obs_window", "16"}});
  std::size_t total = 0;
  for (int layer = 0; layer < 8; ++layer) {
    scene.view.layer = layer;
    total += select(*selector, scene.view, 64)[0].size();
  }
  EXPECT_EQ(total, 8U * 64U);  // its whole-number line alone has 8 * 64.5
}

TEST(PyramidKv, LayersKeepTheirShareAndASingleLayerTheAverage) {
  PromptScene scene({.n_tokens = 400});
  const auto selector = make_selector("pyramidkv", {{"obs_window", "8"}});
  const auto kept_in = [&](int layer, int n_layers) {
    scene.view.layer = layer;
    scene.view.n_layers = n_layers;
    const KeptTokens kept = select(*selector, scene.view, 180);
    EXPECT_EQ(kept[0].size(), kept[1].size());
    return static_cast<int>(kept[0].size());
  };
  EXPECT_GT(kept_in(0, 4), 300);
  EXPECT_LT(kept_in(3, 4), 60);
  EXPECT_NEAR(kept_in(0, 4) + kept_in(1, 4) + kept_in(2, 4) + kept_in(3, 4), 4 * 180, 2);
  EXPECT_EQ(kept_in(0, 1), 180);
}

}  // namespace
}  // namespace qevict
