#include "kv/head_scores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace qevict {
namespace {

struct Windows {
  int n_heads;
  std::vector<std::vector<float>> records;

  std::vector<HeadRecord> view() const {
    std::vector<HeadRecord> all;
    for (const auto& record : records) all.push_back({record.data()});
    return all;
  }
};

std::vector<float> score(const Windows& w, const EvictedHeads& evicted,
                         HeadRank rank = HeadRank::Heads) {
  std::vector<double> inverse(kHeadSignals * w.n_heads);
  std::vector<float> scores(w.records.size());
  head_inverses(w.view(), w.n_heads, evicted, inverse);
  const std::vector<HeadRecord> windows = w.view();
  score_head_shares({w.n_heads, windows, &evicted, inverse}, scores, rank);
  return scores;
}

EvictedHeads none(int n_heads) {
  EvictedHeads evicted;
  evicted.reset(n_heads);
  return evicted;
}

// The definition, for all windows at once.
std::vector<double> by_definition(const Windows& w) {
  const int n_heads = w.n_heads;
  std::vector<double> scores(w.records.size());
  for (int signal = 0; signal < 2; ++signal) {
    const auto value = [&](std::size_t i, int h) {
      const double recent = w.records[i][n_heads + h];
      return signal == 1 ? recent : recent + w.records[i][h];
    };
    std::vector<double> share(w.records.size());
    double all_shares = 0.0;
    for (std::size_t i = 0; i < share.size(); ++i) {
      for (int h = 0; h < n_heads; ++h) {
        double sum = 0.0;
        for (std::size_t j = 0; j < share.size(); ++j) sum += value(j, h);
        if (sum > 0) share[i] = std::max(share[i], value(i, h) / sum);
      }
      all_shares += share[i];
    }
    for (std::size_t i = 0; i < share.size(); ++i) {
      if (all_shares > 0) scores[i] += share[i] / all_shares;
    }
  }
  return scores;
}

Windows random_windows(int n, int n_heads, std::mt19937& rng) {
  Windows w{n_heads, {}};
  std::gamma_distribution<float> mass(0.3F);
  for (int i = 0; i < n; ++i) {
    std::vector<float>& record = w.records.emplace_back(head_record_floats(n_heads));
    for (float& x : record) x = mass(rng);
  }
  return w;
}

TEST(HeadScores, FollowTheDefinition) {
  std::mt19937 rng(3);
  for (const int n_heads : {1, 4, 14}) {
    const Windows w = random_windows(50, n_heads, rng);
    const std::vector<float> scores = score(w, none(n_heads));
    const std::vector<double> expected = by_definition(w);
    double sum = 0.0;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      EXPECT_NEAR(scores[i], expected[i], 1e-6) << i;
      sum += scores[i];
    }
    EXPECT_NEAR(sum, 2.0, 1e-5);
  }
}

TEST(HeadScores, OneHeadsWindowIsWorthAsMuchAsAllHeads) {
  // Head 1 looks at window 0 alone; head 0 spreads ten times as much over the others.
  Windows w{2, {{0, 1, 0, 0}, {5, 0, 0, 0}, {3, 0, 0, 0}, {2, 0, 0, 0}}};
  const std::vector<float> scores = score(w, none(2));
  EXPECT_GT(scores[0], scores[1]);
  EXPECT_GT(scores[1], scores[2]);
  EXPECT_GT(scores[2], scores[3]);
}

TEST(HeadScores, RecentRowsLiftAWindowThatFewQueriesCouldSee) {
  Windows w{1, {{9, 0}, {9, 0}, {0, 1}}};
  const std::vector<float> scores = score(w, none(1));
  EXPECT_GT(scores[2], scores[0]);
}

TEST(HeadScores, EvictedWindowsStayInTheSums) {
  std::mt19937 rng(5);
  const Windows w = random_windows(40, 6, rng);
  const std::vector<float> all = score(w, none(6));
  // The first 15 leave; what they had keeps its part of the shares.
  std::vector<double> inverse(kHeadSignals * 6);
  head_inverses(w.view(), 6, none(6), inverse);
  EvictedHeads evicted = none(6);
  for (int i = 0; i < 15; ++i) retire_window({w.records[i].data()}, 6, inverse, evicted);
  const Windows rest{6, {w.records.begin() + 15, w.records.end()}};
  const std::vector<float> scores = score(rest, evicted);
  for (std::size_t i = 0; i < scores.size(); ++i) EXPECT_NEAR(scores[i], all[i + 15], 1e-6);
}

TEST(HeadScores, RanksForAblationsAreParts) {
  std::mt19937 rng(7);
  const Windows w = random_windows(30, 5, rng);
  const std::vector<float> both = score(w, none(5));
  const std::vector<float> all = score(w, none(5), HeadRank::All);
  const std::vector<float> recent = score(w, none(5), HeadRank::Recent);
  for (std::size_t i = 0; i < both.size(); ++i) EXPECT_NEAR(all[i] + recent[i], both[i], 1e-6);
  // Means over heads: head 1's window weighs as little as its attention.
  Windows one{2, {{0, 1, 0, 0}, {5, 0, 0, 0}, {3, 0, 0, 1}}};
  const std::vector<float> mean = score(one, none(2), HeadRank::Mean);
  EXPECT_NEAR(mean[0], 1.0 / 10, 1e-6);
  EXPECT_NEAR(mean[1], 5.0 / 10, 1e-6);
  EXPECT_NEAR(mean[2], 4.0 / 10 + 1.0, 1e-6);
}

TEST(HeadScores, WithoutAttentionScoresAreZero) {
  const Windows w{2, {{0, 0, 0, 0}, {0, 0, 0, 0}}};
  for (const HeadRank rank : {HeadRank::Heads, HeadRank::All, HeadRank::Recent, HeadRank::Mean}) {
    EXPECT_EQ(score(w, none(2), rank), (std::vector<float>{0, 0}));
  }
  EXPECT_TRUE(score({2, {}}, none(2)).empty());
}

}  // namespace
}  // namespace qevict
