#include <gtest/gtest.h>

#include "policies/one_shot.h"
#include "policies/selector_test.h"

namespace qevict {
namespace {

// Every query of KV head 0's group looks at one token.
void look_at(PromptScene& scene, int token) {
  const PromptView& view = scene.view;
  const float* k = view.heads[0].k + token * view.head_dim;
  for (int i = 0; i < view.group_size() * view.n_last; ++i) {
    std::copy_n(k, view.head_dim, scene.q.begin() + i * view.head_dim);
  }
}

TEST(SnapKv, KeepsWhatTheLastQueriesLookAtAndItsNeighbours) {
  PromptScene scene({.n_tokens = 200});
  for (int c = 0; c < 16; ++c) scene.k(0)[50 * 16 + c] *= 4.0F;
  look_at(scene, 50);
  const KeptTokens kept = select(*make_selector("snapkv"), scene.view, 64 + 5);
  const std::vector<int> past(kept[0].begin(), kept[0].begin() + 5);
  EXPECT_EQ(past, (std::vector<int>{48, 49, 50, 51, 52}));  // pooled over five
  EXPECT_EQ(select(*make_selector("snapkv", {{"kernel", "1"}}), scene.view, 64 + 1)[0].front(), 50);
}

TEST(SnapKv, FactoryFlavourObservesHalfAsManyQueries) {
  EXPECT_EQ(make_selector("snapkv")->smallest_budget(), 64);
  EXPECT_EQ(make_selector("snapkv", {{"flavour", "factory"}})->smallest_budget(), 32);
  const auto own = make_selector("snapkv", {{"obs_window", "16"}, {"flavour", "factory"}});
  EXPECT_EQ(own->smallest_budget(), 16);
  EXPECT_EQ(own->needs().last_queries, 16);
}

TEST(SnapKv, FlavoursChooseTheSameTokensWithTheSameParameters) {
  // A sum over the queries orders tokens as their mean does.
  const PromptScene scene({.n_tokens = 300});
  EXPECT_EQ(select(*make_selector("snapkv"), scene.view, 100),
            select(*make_selector("snapkv", {{"flavour", "factory"}, {"obs_window", "64"}}),
                   scene.view, 100));
}

TEST(SnapKv, KeepsAllOfAHeadThatHoldsLess) {
  const PromptScene scene({.n_tokens = 200, .n_last = 20},
                          [](int head, TokenPos p) { return p >= 180 || head == 1; });
  const KeptTokens kept = select(*make_selector("snapkv"), scene.view, 64);
  EXPECT_EQ(kept[0].size(), 20U);
  EXPECT_EQ(kept[1].size(), 64U);
}

}  // namespace
}  // namespace qevict
