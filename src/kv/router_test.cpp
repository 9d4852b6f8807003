#include "kv/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>

namespace qevict {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<WindowView> windows_of(const std::string& tiers) {
  std::vector<WindowView> windows;
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    const Tier tier = tiers[i] == 'F'   ? Tier::Full
                      : tiers[i] == 'Q' ? Tier::Quantized
                                        : Tier::Local;
    windows.push_back({static_cast<WindowId>(i), tier, 0.0F, 0.0F});
  }
  return windows;
}

std::string route(const std::string& tiers, const std::vector<float>& scores, TierQuota quota,
                  bool promotion = true) {
  RoutingPlan plan;
  plan_routing(windows_of(tiers), scores, quota, {promotion}, plan);
  std::string text;
  for (const Tier t : plan.to) text += t == Tier::Full ? 'F' : t == Tier::Quantized ? 'Q' : 'E';
  return text;
}

TEST(Router, FullTakesTheBestThenQuantizedThenEvicts) {
  EXPECT_EQ(route("FFQQLL", {1, 6, 5, 2, 3, 4}, {2, 2}), "EFFEQQ");
}

TEST(Router, TiesGoToTheLowerWindow) {
  EXPECT_EQ(route("LLLLLL", {1, 1, 1, 1, 1, 1}, {2, 3}), "FFQQQE");
  EXPECT_EQ(route("LLLLL", {2, 1, 2, 1, 2}, {2, 2}), "FQFEQ");
}

TEST(Router, UnusedFullCapacityIsNotGivenToQuantized) {
  EXPECT_EQ(route("LL", {1, 2}, {5, 0}), "FF");
  EXPECT_EQ(route("QQL", {3, 2, 1}, {2, 0}, false), "EEF");
}

TEST(Router, WithoutPromotionQuantizedWindowsStayOutOfFull) {
  EXPECT_EQ(route("QFLQ", {9, 1, 2, 8}, {1, 2}, false), "QEFQ");
  EXPECT_EQ(route("QFLQ", {9, 1, 2, 8}, {1, 2}, true), "FEQQ");
}

TEST(Router, ZeroQuotasEvictEverything) {
  EXPECT_EQ(route("FQL", {1, 2, 3}, {0, 0}), "EEE");
  EXPECT_EQ(route("FQL", {1, 2, 3}, {0, 2}), "EQQ");
  EXPECT_EQ(route("FQL", {1, 2, 3}, {2, 0}), "EFF");
  EXPECT_EQ(route("", {}, {2, 2}), "");
}

TEST(Router, NanRanksBelowEverything) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(route("LLLL", {kNan, -kInf, 0.0F, kNan}, {1, 1}), "EQFE");
  EXPECT_EQ(route("LLL", {kNan, kNan, kNan}, {1, 1}), "FQE");
}

TEST(Router, AgreesWithAFullSortOnRandomScores) {
  std::mt19937 rng(7);
  RoutingPlan plan;
  for (int round = 0; round < 300; ++round) {
    const int n = static_cast<int>(rng() % 60);
    std::vector<WindowView> windows;
    std::vector<float> scores;
    WindowId id = 0;
    for (int i = 0; i < n; ++i) {
      id += 1 + static_cast<WindowId>(rng() % 3);
      windows.push_back({id, static_cast<Tier>(rng() % 3), 0.0F, 0.0F});
      scores.push_back(static_cast<float>(rng() % 6));  // many ties
    }
    const TierQuota quota{static_cast<int>(rng() % 30), static_cast<int>(rng() % 30)};
    const bool promotion = rng() % 2 == 0;
    plan_routing(windows, scores, quota, {promotion}, plan);

    std::vector<int> order(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) order[i] = i;
    std::ranges::sort(order, [&](int a, int b) {
      return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    });
    std::vector<Tier> expected(static_cast<std::size_t>(n), Tier::Evicted);
    std::int64_t full = 0, quantized = 0;
    for (const int i : order) {
      if ((promotion || windows[i].tier != Tier::Quantized) && full < quota.n_full) {
        expected[i] = Tier::Full;
        ++full;
      }
    }
    for (const int i : order) {
      if (expected[i] == Tier::Evicted && quantized < quota.n_quantized) {
        expected[i] = Tier::Quantized;
        ++quantized;
      }
    }
    EXPECT_EQ(plan.to, expected);
  }
}

}  // namespace
}  // namespace qevict
