#include "policies/observation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "policies/selector_test.h"

namespace qevict {
namespace {

// Softmax of one query over the tokens up to its position, in double.
std::vector<double> naive_row(const PromptScene& scene, int q_head, int from_end) {
  const PromptView& view = scene.view;
  const PromptHead& head = view.heads[q_head / view.group_size()];
  const float* q = view.q_last + ((q_head + 1) * view.n_last - 1 - from_end) * view.head_dim;
  std::vector<double> row(head.positions.size(), 0.0);
  double sum = 0.0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (head.positions[i] > view.n_tokens - 1 - from_end) continue;
    double dot = 0.0;
    for (int c = 0; c < view.head_dim; ++c) dot += q[c] * head.k[i * view.head_dim + c];
    sum += row[i] = std::exp(dot * view.scale);
  }
  for (double& p : row) p /= sum;
  return row;
}

void expect_rows(const PromptScene& scene, int obs_window) {
  Observer observer(scene.view, obs_window);
  for (int h = 0; h < scene.view.n_heads; ++h) {
    observer.probabilities(h);
    for (int r = 0; r < observer.rows(); ++r) {
      const std::vector<double> expected = naive_row(scene, h, observer.rows() - 1 - r);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(observer.row(r)[i], expected[i], 2e-6 * expected[i] + 1e-9)
            << "head " << h << " row " << r << " token " << i;
      }
    }
  }
}

TEST(Observer, RowsAreCausalSoftmaxOverWhatAHeadHolds) {
  expect_rows(PromptScene({.n_tokens = 83, .n_last = 17}), 17);
  expect_rows(PromptScene({.n_heads = 6, .n_kv_heads = 2, .head_dim = 20, .n_tokens = 50},
                          [](int head, TokenPos p) { return p > 30 || p % (2 + head) == 0; }),
              19);
}

TEST(Observer, TakesTheLastOfMoreQueriesThanItAsksFor) {
  const PromptScene scene({.n_tokens = 40, .n_last = 30});
  Observer observer(scene.view, 8);
  EXPECT_EQ(observer.rows(), 8);
  EXPECT_EQ(observer.past(0), 32);
  expect_rows(scene, 8);
}

TEST(Observer, CountsItsWindowByPositionNotByIndex) {
  const PromptScene scene({.n_tokens = 40, .n_last = 6},
                          [](int head, TokenPos p) { return p >= 34 || (head == 0 && p < 10); });
  const Observer observer(scene.view, 64);
  EXPECT_EQ(observer.rows(), 6);
  EXPECT_EQ(observer.past(0), 10);
  EXPECT_EQ(observer.past(1), 0);
  const HeadScores scores = snapkv_scores(scene.view, 64, 5);
  EXPECT_EQ(scores[0].size(), 16U);
  EXPECT_EQ(scores[1], std::vector<float>(6, scores[0].back()));
}

TEST(KeyProducts, SoftmaxOfLargeLogitsIsExactAndSumsToOne) {
  std::vector<float> x(1000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1e4F - static_cast<float>(i % 37) * 5.0F;
  double all = 0.0;
  for (const float logit : x) all += std::exp((logit - 1e4) * 0.5);
  const std::vector<float> logits = x;
  softmax_row(x.data(), 1000, 1000, 0.5F);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp((logits[i] - 1e4) * 0.5) / all;
    EXPECT_NEAR(x[i], expected, 1e-6 * expected + 1e-37);
  }
}

TEST(KeyProducts, SoftmaxOfNothingIsZero) {
  std::vector<float> x = {1, 2, 3};
  softmax_row(x.data(), 0, 3, 1.0F);
  EXPECT_EQ(x, (std::vector<float>{0, 0, 0}));
}

TEST(KeyProducts, QuadraticFormMatchesItsDefinition) {
  const PromptScene scene({.head_dim = 20, .n_tokens = 21});
  KeyProducts keys;
  keys.assign(scene.view.heads[0].k, 21, 20);
  std::vector<float> out(keys.stride());
  keys.quadratic(scene.q.data(), out.data());  // the first 20 rows of 20 queries as a matrix
  for (int t = 0; t < 21; ++t) {
    const float* k = scene.view.heads[0].k + t * 20;
    double sum = 0.0;
    for (int a = 0; a < 20; ++a) {
      for (int b = 0; b < 20; ++b) sum += double{k[a]} * scene.q[a * 20 + b] * k[b];
    }
    EXPECT_NEAR(out[t], sum, 1e-4);
  }
}

TEST(Pooling, AverageCountsZerosBeyondTheEndsAndMaxDoesNot) {
  const std::vector<float> x = {3, 0, 6, 9};
  EXPECT_EQ(pool(x, 3, Pooling::Average), (std::vector<float>{1, 3, 5, 5}));
  EXPECT_EQ(pool(x, 3, Pooling::Max), (std::vector<float>{3, 6, 9, 9}));
  EXPECT_EQ(pool(x, 1, Pooling::Average), x);
  EXPECT_EQ(pool(x, 9, Pooling::Max), (std::vector<float>(4, 9)));
  EXPECT_TRUE(pool({}, 5, Pooling::Average).empty());
}

TEST(Observation, TheGroupsHeadsAreReducedBeforePooling) {
  const PromptScene scene({.n_heads = 4, .n_kv_heads = 1, .n_tokens = 60, .n_last = 8});
  Observation what{.obs_window = 8, .kernel = 1, .sum_queries = true};
  const auto column = [&](GroupReduction group) {
    what.group = group;
    return observe(scene.view, what)[0][7];
  };
  double sum = 0.0, max = 0.0;
  for (int h = 0; h < 4; ++h) {
    double head = 0.0;
    for (int r = 0; r < 8; ++r) head += naive_row(scene, h, r)[7];
    sum += head;
    max = std::max(max, head);
  }
  EXPECT_NEAR(column(GroupReduction::Sum), sum, 1e-5);
  EXPECT_NEAR(column(GroupReduction::Mean), sum / 4, 1e-5);
  EXPECT_NEAR(column(GroupReduction::Max), max, 1e-5);
  what.sum_queries = false;
  EXPECT_NEAR(column(GroupReduction::Mean), sum / 32, 1e-6);
}

TEST(TovaScores, OneTokenIsTheLastOne) {
  // The peer fails here.
  const PromptScene scene({.n_tokens = 1, .n_last = 1});
  EXPECT_EQ(tova_scores(scene.view), (HeadScores{{1.0F}, {1.0F}}));
}

TEST(StreamingScore, SinksFirstThenTheNewest) {
  EXPECT_GT(streaming_score(3, 4), streaming_score(1000000, 4));
  EXPECT_GT(streaming_score(9, 4), streaming_score(8, 4));
}

TEST(ObservedAttention, DividesByTheQueriesThatCouldSeeAToken) {
  PromptScene scene({.n_heads = 2, .n_kv_heads = 1, .n_tokens = 3},
                    [](int, TokenPos p) { return p != 1; });
  const std::vector<double> a = {2.0, 1.0}, b = {4.0, 0.5};
  const std::vector<std::span<const double>> mass = {a, b};
  scene.view.mass = mass;
  // Token 0 was seen by 3 queries, token 2 by 1.
  EXPECT_EQ(observed_attention_scores(scene.view), (HeadScores{{1.0F, 0.75F}}));
  EXPECT_EQ(factory_h2o_scores(scene.view, 1, GroupReduction::Max), (HeadScores{{4.0F}}));
}

}  // namespace
}  // namespace qevict
