#include "kv/ladder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>

#include "kv/budget.h"

namespace qevict {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr RungId kNew = kUnquantised;

Geometry small_model() {
  Geometry g;
  g.n_heads = 14;
  g.n_kv_heads = 2;
  g.head_dim = 64;
  return g;
}

// A prompt of 1103 tokens and 96 more, 5 sinks, 8 local tokens.
LadderQuota slots(double beta, int bits = 0, int window = 8) {
  Geometry g = small_model();
  g.window = window;
  const auto total = static_cast<std::int64_t>(beta * (1103 + 96));
  return ladder_quota(g, ladder_free_bytes(g, total, 5, 8, ladder_window_tokens(g)),
                      ladder_windows(1103 + 96, 5, 8, window), bits);
}

TEST(Ladder, WindowsHaveTheBytesOfTheirCodesAndGrids) {
  const Geometry g = small_model();
  // A token of 2 KV heads of 64: 64 bytes a two bits of K and V, and the grids' share.
  const std::map<int, int> expected = {{2, 84}, {3, 84 + 32}, {4, 100 + 64}, {8, 100 + 192}};
  for (const auto& [bits, bytes] : expected) {
    EXPECT_EQ(rung_window_bytes(g, rung_of_bits(bits)), 8 * bytes) << bits;
  }
  EXPECT_EQ(ladder_range_bytes(g), 4 * 2 * 64 + 4 * 2);
  EXPECT_EQ(rung_of_bits(5), kNoRung);
  for (RungId rung = 0; rung + 1 < kMaxRungs; ++rung) {
    EXPECT_GT(rung_window_bytes(g, rung), rung_window_bytes(g, rung + 1));
  }
}

TEST(Ladder, NumbersOfWindowsAreThoseOfTheMeasuredRuns) {
  EXPECT_EQ(slots(0.05), (LadderQuota{{0, 0, 0, 34}}));
  EXPECT_EQ(slots(0.1), (LadderQuota{{0, 0, 0, 79}}));
  EXPECT_EQ(slots(0.2), (LadderQuota{{0, 0, 124, 0}}));
  EXPECT_EQ(slots(0.4), (LadderQuota{{42, 106, 0, 0}}));
}

TEST(Ladder, BytesOfTheQuotaFitWhateverTheBudgetAndTheWindow) {
  for (const int window : {4, 8, 16, 32}) {
    Geometry g = small_model();
    g.window = window;
    for (int permille = 0; permille <= 1000; ++permille) {
      const std::int64_t total = permille * 4000 / 1000;
      const std::int64_t free = ladder_free_bytes(g, total, 5, 8, ladder_window_tokens(g));
      for (const int bits : {0, 2, 3, 4, 8}) {
        const LadderQuota quota = ladder_quota(g, free, ladder_windows(4000, 5, 8, window), bits);
        std::int64_t bytes = quota.total() > 0 ? ladder_range_bytes(g) : 0;
        for (RungId rung = 0; rung < kMaxRungs; ++rung) {
          ASSERT_GE(quota.n[rung], 0);
          bytes += quota.n[rung] * rung_window_bytes(g, rung);
        }
        ASSERT_LE(bytes, free) << "window " << window << " total " << total << " bits " << bits;
        ASSERT_LE(quota.total(), ladder_windows(4000, 5, 8, window));
      }
    }
  }
}

TEST(Ladder, GivenBitsUseOneRung) {
  EXPECT_EQ(slots(0.2, 2), (LadderQuota{{0, 0, 0, 148}}));  // all there are
  EXPECT_EQ(slots(0.1, 3), (LadderQuota{{0, 0, 57, 0}}));
  EXPECT_EQ(slots(0.4, 8), (LadderQuota{{101, 0, 0, 0}}));
}

TEST(Ladder, AnEmptyBudgetHoldsNothing) {
  const Geometry g = small_model();
  EXPECT_EQ(ladder_free_bytes(g, 13, 5, 8, 0), 0);
  EXPECT_EQ(ladder_quota(g, 0, 100), LadderQuota{});
  EXPECT_EQ(ladder_quota(g, ladder_range_bytes(g), 100), LadderQuota{});
  EXPECT_EQ(ladder_windows(13, 5, 8, 8), 0);
}

std::string route(const std::vector<RungId>& stored, const std::vector<float>& scores,
                  const LadderQuota& quota) {
  LadderPlan plan;
  plan_ladder(stored, scores, quota, plan);
  std::string text;
  for (const RungId to : plan.to)
    text += to == kNoRung ? '.' : static_cast<char>('0' + kRungs[to].bits);
  return text;
}

TEST(LadderPlan, BestWindowsGetTheMostBits) {
  EXPECT_EQ(route({kNew, kNew, kNew, kNew, kNew}, {1, 5, 3, 2, 4}, {{2, 2, 0, 0}}), ".8448");
  EXPECT_EQ(route({kNew, kNew, kNew, kNew}, {1, 1, 1, 1}, {{0, 1, 0, 2}}), "422.");
  EXPECT_EQ(route({}, {}, {{1, 1, 1, 1}}), "");
  EXPECT_EQ(route({kNew}, {1}, {}), ".");
}

TEST(LadderPlan, BitsNeverRise) {
  // The best window has 4 bits: INT8 passes it over, and takes what has 8 bits or is new.
  EXPECT_EQ(route({1, 0, kNew, 0}, {9, 1, 2, 3}, {{2, 2, 0, 0}}), "4488");
  // The only rung takes what has fewer bits, as it is.
  EXPECT_EQ(route({3, 1, kNew}, {9, 8, 7}, {{0, 0, 2, 0}}), "23.");
  // Slots that INT8 has no window for are INT4's.
  EXPECT_EQ(route({1, 3, 1}, {1, 2, 3}, {{2, 1, 0, 0}}), "424");
}

TEST(LadderPlan, NanRanksLastAndTiesGoToTheLowerIndex) {
  EXPECT_EQ(route({kNew, kNew, kNew}, {kNan, -1e30F, 1}, {{0, 0, 2, 0}}), ".33");
  EXPECT_EQ(route({kNew, kNew, kNew}, {2, 2, 2}, {{0, 0, 0, 2}}), "22.");
}

TEST(LadderPlan, EqualsAWalkDownTheRanking) {
  std::mt19937 rng(7);
  LadderPlan plan;
  for (int round = 0; round < 300; ++round) {
    const int n = static_cast<int>(rng() % 40);
    std::vector<RungId> stored(n);
    std::vector<float> scores(n);
    for (int i = 0; i < n; ++i) {
      stored[i] = static_cast<RungId>(static_cast<int>(rng() % 5) - 1);
      scores[i] = rng() % 10 == 0 ? kNan : static_cast<float>(rng() % 8);
    }
    LadderQuota quota;
    for (std::int64_t& count : quota.n) count = rng() % 3 == 0 ? rng() % 15 : 0;
    plan_ladder(stored, scores, quota, plan);

    std::vector<int> ranking(n);
    for (int i = 0; i < n; ++i) ranking[i] = i;
    std::ranges::sort(ranking, [&](int a, int b) {
      const auto key = [&](int i) { return std::isnan(scores[i]) ? -1.0F : scores[i]; };
      return key(a) != key(b) ? key(a) > key(b) : a < b;
    });
    std::vector<RungId> expected(n, kNoRung);
    int lowest = -1;
    for (int rung = 0; rung < kMaxRungs; ++rung) {
      if (quota.n[rung] > 0) lowest = rung;
    }
    std::int64_t slots_left = 0;
    for (int rung = 0; rung <= lowest; ++rung) {
      slots_left += quota.n[rung];
      if (quota.n[rung] == 0) continue;
      for (const int i : ranking) {
        if (slots_left == 0) break;
        if (expected[i] != kNoRung || (stored[i] > rung && rung != lowest)) continue;
        expected[i] = stored[i] > rung ? stored[i] : static_cast<RungId>(rung);
        --slots_left;
      }
    }
    ASSERT_EQ(plan.to, expected) << "round " << round;
  }
}

TEST(LadderLayerShare, LateLayersGetMoreAndTheSumStays) {
  for (const double kept : {0.01, 0.05, 0.2, 0.4, 0.9, 1.0}) {
    double sum = 0.0;
    for (int layer = 0; layer < 24; ++layer) sum += ladder_layer_share(kept, layer, 24);
    EXPECT_NEAR(sum, 24.0, 1e-12) << kept;
  }
  EXPECT_DOUBLE_EQ(ladder_layer_share(0.05, 0, 24), 0.4);
  EXPECT_DOUBLE_EQ(ladder_layer_share(0.05, 23, 24), 1.6);
  EXPECT_NEAR(ladder_layer_share(0.4, 0, 24), 0.7, 1e-12);
  EXPECT_NEAR(ladder_layer_share(0.4, 23, 24), 1.3, 1e-12);
  EXPECT_DOUBLE_EQ(ladder_layer_share(0.9, 0, 24), 1.0);
  EXPECT_DOUBLE_EQ(ladder_layer_share(0.2, 0, 1), 1.0);
}

}  // namespace
}  // namespace qevict
