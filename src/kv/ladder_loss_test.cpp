#include "kv/ladder_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace qevict {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr RungId kNew = kUnquantised;

// INT8, INT4, INT3, INT2 of a window of 8 tokens, 2 KV heads of 64.
LadderQuota quota_of(std::int64_t bytes) {
  LadderQuota quota;
  quota.bytes = bytes;
  quota.window_bytes = {2336, 1312, 928, 672};
  return quota;
}

std::string text_of(const LadderPlan& plan) {
  std::string text;
  for (const RungId to : plan.to) {
    text += to == kNoRung ? '.' : static_cast<char>('0' + kRungs[to].bits);
  }
  return text;
}

std::string route(const std::vector<RungId>& stored, const std::vector<float>& scores,
                  std::int64_t bytes) {
  LadderPlan plan;
  plan_ladder(stored, scores, quota_of(bytes), plan);
  return text_of(plan);
}

std::int64_t bytes_of(const LadderPlan& plan) {
  std::int64_t sum = 0;
  for (const RungId to : plan.to) sum += to == kNoRung ? 0 : quota_of(0).window_bytes[to];
  return sum;
}

double loss_of(std::span<const RungId> to, std::span<const float> scores) {
  double sum = 0.0;
  for (std::size_t i = 0; i < to.size(); ++i) {
    sum += double{scores[i]} * scores[i] * (to[i] == kNoRung ? 1.0 : kRungLoss[to[i]]);
  }
  return sum;
}

TEST(LadderLoss, ConcentratedAttentionGetsBitsAndSpreadAttentionGetsWindows) {
  EXPECT_EQ(route({kNew, kNew, kNew, kNew}, {100, 1, 1, 1}, 2336 + 672), "82..");
  EXPECT_EQ(route({kNew, kNew, kNew, kNew}, {1, 1, 1, 1}, 4 * 672), "2222");
  EXPECT_EQ(route({kNew, kNew, kNew, kNew}, {1, 2, 4, 1}, 4 * 2336), "8888");
  EXPECT_EQ(route({kNew, kNew}, {1, 2}, 0), "..");
  EXPECT_EQ(route({}, {}, 1000), "");
}

TEST(LadderLoss, BitsNeverRise) {
  EXPECT_EQ(route({3, 2, 1, 0}, {9, 9, 9, 9}, 4 * 2336), "2348");
  EXPECT_EQ(route({3, kNew}, {9, 1}, 672 + 2336), "28");
}

TEST(LadderLoss, NanClimbsLastAndTiesGoToTheLowerIndex) {
  EXPECT_EQ(route({kNew, kNew, kNew}, {2, 2, 2}, 2 * 672), "22.");
  EXPECT_EQ(route({kNew, kNew, kNew}, {kNan, 0, 0}, 2 * 672), ".22");
  EXPECT_EQ(route({kNew, kNew}, {kNan, 1}, 672 + 2336), "28");
}

// No other choice of at most the same bytes loses less.
TEST(LadderLoss, IsTheBestUseOfItsBytes) {
  std::mt19937 rng(5);
  std::lognormal_distribution<float> share(0.0F, 2.0F);
  for (int round = 0; round < 200; ++round) {
    const int n = 1 + static_cast<int>(rng() % 5);
    std::vector<RungId> stored(n);
    std::vector<float> scores(n);
    for (int i = 0; i < n; ++i) {
      stored[i] = static_cast<RungId>(static_cast<int>(rng() % 5) - 1);
      scores[i] = share(rng);
    }
    LadderPlan plan;
    plan_ladder(stored, scores, quota_of(static_cast<std::int64_t>(rng() % (n * 2336))), plan);
    const std::int64_t bytes = bytes_of(plan);
    const double loss = loss_of(plan.to, scores);
    LadderPlan other;
    other.to.resize(n);
    for (int code = 0; code < std::pow(5, n); ++code) {
      bool allowed = true;
      for (int i = 0, rest = code; i < n; ++i, rest /= 5) {
        other.to[i] = rest % 5 == 4 ? kNoRung : static_cast<RungId>(rest % 5);
        allowed = allowed && (other.to[i] == kNoRung || other.to[i] >= stored[i]);
      }
      if (!allowed || bytes_of(other) > bytes) continue;
      ASSERT_LE(loss, loss_of(other.to, scores) * (1.0 + 1e-12)) << "round " << round;
    }
  }
}

TEST(LadderLoss, SpendsTheBytesUpToOneStep) {
  std::mt19937 rng(6);
  std::lognormal_distribution<float> share(0.0F, 2.0F);
  LadderPlan plan;
  for (int round = 0; round < 200; ++round) {
    const int n = 50 + static_cast<int>(rng() % 500);
    const std::vector<RungId> stored(n, kNew);
    std::vector<float> scores(n);
    for (float& score : scores) score = share(rng);
    const auto bytes = static_cast<std::int64_t>(rng() % (n * 2336));
    plan_ladder(stored, scores, quota_of(bytes), plan);
    ASSERT_LE(bytes_of(plan), bytes);
    ASSERT_LT(bytes - bytes_of(plan), 2336);
  }
}

}  // namespace
}  // namespace qevict
