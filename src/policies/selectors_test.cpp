// What holds for every policy that chooses tokens once: a new one is tested without a change here.
#include <gtest/gtest.h>

#include <limits>

#include "policies/selector_test.h"

namespace qevict {
namespace {

class Selectors : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { selector_ = make_selector(GetParam()); }

  // Ascending indexes of tokens that are there; about n_kept a head; the newest `window` stay.
  void expect_sound(const PromptView& view, int n_kept, const KeptTokens& kept, int window) const {
    std::int64_t total = 0, held = 0;
    for (std::size_t h = 0; h < kept.size(); ++h) {
      const int n = static_cast<int>(view.heads[h].positions.size());
      total += std::ssize(kept[h]);
      held += n;
      for (std::size_t i = 0; i < kept[h].size(); ++i) {
        EXPECT_GE(kept[h][i], i == 0 ? 0 : kept[h][i - 1] + 1);
        EXPECT_LT(kept[h][i], n);
      }
      if (window == 0) continue;
      ASSERT_GE(std::ssize(kept[h]), std::min(window, n));
      EXPECT_EQ(*(kept[h].end() - std::min(window, n)), n - std::min(window, n)) << "head " << h;
    }
    const std::int64_t budget = std::int64_t{n_kept} * std::ssize(kept);
    EXPECT_LE(total, budget + std::ssize(kept) / 2);
    if (held >= budget && is_uniform(view)) EXPECT_GE(total, budget - std::ssize(kept));
  }
  static bool is_uniform(const PromptView& view) {
    for (const PromptHead& head : view.heads) {
      if (std::ssize(head.positions) != view.n_tokens) return false;
    }
    return true;
  }
  int window() const { return selector_->needs().last_queries; }

  std::unique_ptr<Selector> selector_;
};

TEST_P(Selectors, KeepTheBudgetAndTheWindowAndAreRepeatable) {
  for (const PromptShape& shape :
       {PromptShape{}, PromptShape{.n_heads = 14, .n_kv_heads = 2, .n_tokens = 200, .seed = 2},
        PromptShape{.n_heads = 2, .n_kv_heads = 2, .n_tokens = 70, .seed = 3}}) {
    const PromptScene scene(shape);
    for (const int n_kept : {selector_->smallest_budget(), selector_->smallest_budget() + 3}) {
      const KeptTokens kept = select(*selector_, scene.view, n_kept);
      expect_sound(scene.view, n_kept, kept, window());
      EXPECT_EQ(select(*selector_, scene.view, n_kept), kept);
    }
  }
}

TEST_P(Selectors, TakeHeadsThatHoldDifferentTokens) {
  // An earlier prompt of 90 left every third token of head 0 and a tenth of head 1.
  const PromptScene scene({.n_tokens = 160}, [](int head, TokenPos p) {
    return p >= 90 || p % (head == 0 ? 3 : 10) == 0;
  });
  const int n_kept = selector_->smallest_budget() + 10;
  expect_sound(scene.view, n_kept, select(*selector_, scene.view, n_kept), window());
}

TEST_P(Selectors, ObserveAPromptShorterThanTheirWindowByItsOwnQueries) {
  const PromptScene scene({.n_tokens = 160, .n_last = 5},
                          [](int, TokenPos p) { return p >= 155 || p % 2 == 0; });
  const int n_kept = selector_->smallest_budget() + 2;
  expect_sound(scene.view, n_kept, select(*selector_, scene.view, n_kept), std::min(5, window()));
}

TEST_P(Selectors, KeepTheNewestWhereTheBudgetDoesNotHoldTheWindow) {
  const PromptScene scene({});
  const KeptTokens kept = select(*selector_, scene.view, 3);
  for (const std::vector<int>& head : kept) {
    if (window() == 0) {
      EXPECT_EQ(head.size(), 3U);
    } else {
      EXPECT_EQ(head, (std::vector<int>{97, 98, 99}));
    }
  }
}

TEST_P(Selectors, SurviveKeysThatAreNotNumbers) {
  PromptScene scene({});
  for (int c = 0; c < 16; ++c) scene.k(0)[c] = std::numeric_limits<float>::quiet_NaN();
  scene.k(1)[0] = std::numeric_limits<float>::infinity();
  const int n_kept = selector_->smallest_budget() + 1;
  const KeptTokens kept = select(*selector_, scene.view, n_kept);
  for (const std::vector<int>& head : kept) {
    for (const int i : head) EXPECT_TRUE(i >= 0 && i < 100);
  }
}

std::vector<std::string> selecting_policies() {
  std::vector<std::string> names;
  for (const PolicySpec& policy : policies()) {
    if (policy.make_selector) names.push_back(policy.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, Selectors, testing::ValuesIn(selecting_policies()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace qevict
