// What a policy that selects tokens once reads of a prompt: queries, moments and column sums as the
// attention leaves them, against sums made here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "attention/attention_test.h"

namespace qevict {
namespace {

// A copy of what one view held.
struct Seen {
  std::vector<std::vector<TokenPos>> positions;
  std::vector<std::vector<float>> k;
  std::vector<float> q_last;
  int n_last = 0;
  std::vector<double> mean, covariance;
  std::int64_t n_queries = 0;
  std::vector<std::vector<double>> mass;
  TokenPos n_tokens = 0;
};

// Keeps every third token and the last ten, and writes down what it saw.
struct Recorder final : Selector {
  SelectorNeeds wanted;
  std::vector<Seen>* seen;
  Recorder(SelectorNeeds needs, std::vector<Seen>* to) : wanted(needs), seen(to) {}
  SelectorNeeds needs() const override { return wanted; }
  int smallest_budget() const override { return 1; }
  void select(const PromptView& view, int, KeptTokens& kept) const override {
    Seen& s = seen->emplace_back();
    const auto d = static_cast<std::size_t>(view.head_dim);
    for (int h = 0; h < view.n_kv_heads(); ++h) {
      const PromptHead& head = view.heads[h];
      const std::size_t n = head.positions.size();
      s.positions.emplace_back(head.positions.begin(), head.positions.end());
      s.k.emplace_back(head.k, head.k + n * d);
      for (std::size_t i = 0; i < n; ++i) {
        if (i % 3 == static_cast<std::size_t>(h) || i + 10 >= n) {
          kept[h].push_back(static_cast<int>(i));
        }
      }
    }
    const auto heads = static_cast<std::size_t>(view.n_heads);
    s.n_last = view.n_last;
    s.q_last.assign(view.q_last, view.q_last + heads * view.n_last * d);
    if (view.queries.mean != nullptr) {
      s.mean.assign(view.queries.mean, view.queries.mean + heads * d);
      s.covariance.assign(view.queries.covariance, view.queries.covariance + heads * d * d);
    }
    s.n_queries = view.queries.n_queries;
    for (const std::span<const double> mass : view.mass)
      s.mass.emplace_back(mass.begin(), mass.end());
    s.n_tokens = view.n_tokens;
  }
};

class PromptQueriesTest : public testing::Test {
 protected:
  AttentionDriver driver(const SelectorNeeds& needs, int n_threads) {
    PolicySpec policy;
    policy.name = "recorder";
    policy.schedule = Schedule::Once;
    policy.make_selector = [this, needs](const CacheConfig&) {
      return std::make_unique<Recorder>(needs, &seen);
    };
    CacheConfig config = qevict_config(0.5);
    configure_policy(policy, config);
    Geometry g = small(4, 2, 16);
    g.window = config.window;
    return {g, config, policy, n_threads, 23, 2};
  }

  // Column sums of the causal softmax of the queries in q_last, which must be all of the prompt's.
  static std::vector<std::vector<double>> column_sums(const Seen& s) {
    const std::size_t d = 16;
    std::vector<std::vector<double>> sums;
    for (std::size_t h = 0; h < 4; ++h) {
      const std::vector<TokenPos>& positions = s.positions[h / 2];
      std::vector<double>& sum = sums.emplace_back(positions.size());
      for (int r = 0; r < s.n_last; ++r) {
        const float* q = &s.q_last[(h * s.n_last + r) * d];
        std::vector<double> e(positions.size());
        double total = 0.0;
        for (std::size_t i = 0; i < positions.size(); ++i) {
          if (positions[i] > s.n_tokens - s.n_last + r) continue;
          double dot = 0.0;
          for (std::size_t c = 0; c < d; ++c) dot += q[c] * s.k[h / 2][i * d + c];
          total += e[i] = std::exp(dot / 4.0);
        }
        for (std::size_t i = 0; i < e.size(); ++i) sum[i] += e[i] / total;
      }
    }
    return sums;
  }

  static void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 1e-4 * std::max(1.0, std::fabs(want[i]))) << i;
    }
  }

  std::vector<Seen> seen;
};

TEST_F(PromptQueriesTest, ColumnSumsAndMomentsAreThoseOfTheQueries) {
  AttentionDriver d = driver({.last_queries = 1000, .query_moments = true, .mass = true}, 2);
  d.prompt(130, 20, 48, true);
  for (int i = 0; i < 7; ++i) d.step(true);
  d.prompt(41, 10, 16, true);
  for (int i = 0; i < 10; ++i) d.step(true);
  ASSERT_EQ(seen.size(), 4U);
  EXPECT_EQ(seen[0].n_last, 130);
  EXPECT_EQ(seen[3].n_last, 41);
  EXPECT_EQ(seen[3].n_tokens, 178);
  EXPECT_LT(seen[3].positions[0].size(), 178U)
      << "an appended prompt has what was kept and the new";
  EXPECT_NE(seen[3].positions[0], seen[3].positions[1]);
  for (const Seen& s : seen) {
    const auto want = column_sums(s);
    for (std::size_t h = 0; h < 4; ++h) ASSERT_NO_FATAL_FAILURE(expect_near(s.mass[h], want[h]));
    EXPECT_EQ(s.n_queries, s.n_last);
    // Moments of the queries before RoPE: those of q_last, rotated back.
    const std::size_t dim = 16;
    for (std::size_t h = 0; h < 4; ++h) {
      std::vector<double> sum(dim), products(dim * dim);
      for (int r = 0; r < s.n_last; ++r) {
        std::vector<float> q(&s.q_last[(h * s.n_last + r) * dim],
                             &s.q_last[(h * s.n_last + r) * dim] + dim);
        std::vector<float> cos(dim / 2), sin(dim / 2);
        rope_angles(d.cache().rope(), s.n_tokens - s.n_last + r, cos.data(), sin.data());
        rope_rotate(d.cache().rope(), cos.data(), sin.data(), -1.0F, q.data());
        for (std::size_t i = 0; i < dim; ++i) {
          sum[i] += q[i] / s.n_last;
          for (std::size_t j = 0; j < dim; ++j) products[i * dim + j] += q[i] * q[j] / s.n_last;
        }
      }
      for (std::size_t i = 0; i < dim * dim; ++i) products[i] -= sum[i / dim] * sum[i % dim];
      const auto at = [&](const std::vector<double>& all, std::size_t size) {
        return std::vector<double>(all.begin() + static_cast<std::ptrdiff_t>(h * size),
                                   all.begin() + static_cast<std::ptrdiff_t>((h + 1) * size));
      };
      ASSERT_NO_FATAL_FAILURE(expect_near(at(s.mean, dim), sum));
      ASSERT_NO_FATAL_FAILURE(expect_near(at(s.covariance, dim * dim), products));
    }
  }
}

TEST_F(PromptQueriesTest, SameBitsForAnyNumberOfThreadsAndBlocks) {
  std::vector<Seen> first;
  for (const int threads : {1, 3}) {
    seen.clear();
    AttentionDriver d = driver(
        {.last_queries = 7, .query_moments = true, .moments_from = 4, .mass = true}, threads);
    d.prompt(100, 20, threads == 1 ? 64 : 32, false);
    ASSERT_EQ(seen.size(), 2U);
    EXPECT_EQ(seen[1].n_last, 7);
    EXPECT_EQ(seen[1].n_queries, 96);
    if (first.empty()) {
      first = seen;
      continue;
    }
    EXPECT_EQ(seen[1].q_last, first[1].q_last);
    EXPECT_EQ(seen[1].mean, first[1].mean);
    EXPECT_EQ(seen[1].covariance, first[1].covariance);
    EXPECT_EQ(seen[1].mass, first[1].mass);
  }
}

}  // namespace
}  // namespace qevict
