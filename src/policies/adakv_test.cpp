#include <gtest/gtest.h>

#include <limits>

#include "policies/one_shot.h"
#include "policies/selector_test.h"

namespace qevict {
namespace {

// KV head 0 sees few tokens, KV head 1 all of them alike: its queries are zero.
void concentrate(PromptScene& scene) {
  const PromptView& view = scene.view;
  const std::size_t half = scene.q.size() / 2;
  for (std::size_t i = 0; i < half; ++i) scene.q[i] *= 4.0F;
  std::fill(scene.q.begin() + half, scene.q.end(), 0.0F);
  ASSERT_EQ(view.n_kv_heads(), 2);
}

TEST(AdaKv, HeadsGetDifferentBudgetsWithTheDefaults) {
  PromptScene scene({.n_tokens = 300});
  concentrate(scene);
  for (const char* flavour : {"kvpress", "official", "efficient"}) {
    const KeptTokens kept =
        select(*make_selector("adakv", {{"flavour", flavour}}), scene.view, 120);
    EXPECT_GT(std::abs(std::ssize(kept[0]) - std::ssize(kept[1])), 20) << flavour;
    EXPECT_NEAR(static_cast<double>(kept[0].size() + kept[1].size()), 240.0, 1.0) << flavour;
  }
}

TEST(AdaKv, AlphaOneGivesEveryHeadTheSame) {
  PromptScene scene({.n_tokens = 300});
  concentrate(scene);
  const KeptTokens kept = select(*make_selector("adakv", {{"alpha", "1"}}), scene.view, 120);
  EXPECT_EQ(kept[0].size(), 120U);
  EXPECT_EQ(kept[1].size(), 120U);
}

TEST(AdaKv, SafeTokensOfAPoorHeadAreKept) {
  KeptTokens kept(2);
  adakv_select({{9, 8, 7, 6}, {1, 2, 0, 0}}, 2, 1, kept);
  EXPECT_EQ(kept, (KeptTokens{{0, 1, 2}, {1}}));
  kept.assign(2, {});
  adakv_select({{9, 8, 7, 6}, {1, 2, 0, 0}}, 2, 0, kept);
  EXPECT_EQ(kept, (KeptTokens{{0, 1, 2, 3}, {}}));
}

TEST(AdaKv, OfficialBudgetsRoundHalvesToTheEvenNumber) {
  // 5 and 1 of 6 tokens, half of them free: 2.5 + 1 and 0.5 + 1.
  const HeadScores scores = {{9, 8, 7, 6, 5, 0}, {8.5F, 0, 0, 0, 0, 0}};
  EXPECT_EQ(adakv_official_counts(scores, 3, 0.5, false), (std::vector<int>{4, 2}));
  EXPECT_EQ(adakv_official_counts(scores, 3, 1.0, false), (std::vector<int>{3, 3}));
  // 7, 7 and 1 of 15 become 6.6, 6.6 and 1.8: rounded up that is one too many.
  const std::vector<float> seven = {9, 9, 9, 9, 9, 9, 9, 0};
  EXPECT_EQ(adakv_official_counts({seven, seven, {9, 0, 0, 0, 0, 0, 0, 0}}, 5, 0.2, false),
            (std::vector<int>{6, 7, 2}));
  EXPECT_EQ(adakv_official_counts({{0, 0}, {0, 0}}, 1, 0.0, true), (std::vector<int>{2, 0}));
  EXPECT_EQ(adakv_official_counts(scores, 0, 0.2, true), (std::vector<int>{0, 0}));
}

TEST(AdaKv, AFloorBeyondThePastPinsWhatThereIs) {
  // The peer fails here.
  const PromptScene scene({.n_tokens = 70, .n_last = 64});
  HeadScores scores = observe(scene.view, {.obs_window = 64});
  pin_floor(scene.view, 1000, scores);
  EXPECT_EQ(scores, HeadScores(2, std::vector<float>(70, std::numeric_limits<float>::max())));
}

}  // namespace
}  // namespace qevict
