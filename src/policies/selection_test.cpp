#include "policies/selection.h"

#include <gtest/gtest.h>

#include <limits>

namespace qevict {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Selection, EqualScoresGoToTheLowerIndex) {
  EXPECT_EQ(best(std::vector<float>{1, 2, 2, 2, 0}, 2), (std::vector<int>{1, 2}));
  EXPECT_EQ(best(std::vector<float>{0.0F, -0.0F, 0.0F}, 2), (std::vector<int>{0, 1}));
  EXPECT_EQ(best(std::vector<float>{-1, -3, -2}, 2), (std::vector<int>{0, 2}));
}

TEST(Selection, OrdersInfinitiesAndPutsNanLast) {
  EXPECT_EQ(best(std::vector<float>{kNan, -kInfinity, kInfinity, 5}, 3),
            (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(best(std::vector<float>{kNan, kNan}, 1), (std::vector<int>{0}));
}

TEST(Selection, TakesAllOrNoneBeyondTheLimits) {
  EXPECT_EQ(best(std::vector<float>{1, 2}, 5), (std::vector<int>{0, 1}));
  EXPECT_TRUE(best(std::vector<float>{1, 2}, 0).empty());
  EXPECT_TRUE(best(std::vector<float>{1, 2}, -3).empty());
  EXPECT_TRUE(best(std::vector<float>{}, 2).empty());
}

TEST(Selection, OverHeadsOfDifferentLengthsIsOneOrder) {
  const HeadScores scores = {{1, 9}, {}, {8, 1, 7}, {1}};
  KeptTokens kept(4);
  select_over_heads(scores, 4, kept);
  EXPECT_EQ(kept, (KeptTokens{{0, 1}, {}, {0, 2}, {}}));
  EXPECT_EQ(counts_over_heads(scores, 4), (std::vector<int>{2, 0, 2, 0}));
  EXPECT_EQ(counts_over_heads(scores, 99), (std::vector<int>{2, 0, 3, 1}));
}

TEST(Selection, PinnedTokensComeFirst) {
  std::vector<float> scores = {1, 5, 3};
  pin_best(scores, 2);
  EXPECT_EQ(scores, (std::vector<float>{1, std::numeric_limits<float>::max(),
                                        std::numeric_limits<float>::max()}));
}

}  // namespace
}  // namespace qevict
