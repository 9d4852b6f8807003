#include "engine/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace qevict {
namespace {

TEST(Perplexity, DivergenceOfTwoHandMadeDistributions) {
  // p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): 1/2 log 2 + 0 - 1/4 log 2.
  const std::vector<float> p = {std::log(2.0F) + 5.0F, 5.0F, 5.0F};
  const std::vector<float> q = {-3.0F, -3.0F, std::log(2.0F) - 3.0F};
  EXPECT_NEAR(kl_divergence(p, q), 0.25 * std::log(2.0), 1e-7);
  EXPECT_EQ(kl_divergence(p, p), 0.0);
  // Not symmetric in general: (1/2, 1/2) against (9/10, 1/10).
  const std::vector<float> even = {0.0F, 0.0F};
  const std::vector<float> skewed = {std::log(9.0F), 0.0F};
  EXPECT_NEAR(kl_divergence(even, skewed), -std::log(2.0) - 0.5 * std::log(0.09), 1e-6);
  EXPECT_NEAR(kl_divergence(skewed, even), 0.9 * std::log(1.8) + 0.1 * std::log(0.2), 1e-6);
}

TEST(Perplexity, LikelihoodAndMostLikely) {
  const std::vector<float> logits = {1.0F, 1.0F + std::log(2.0F), 1.0F};
  EXPECT_NEAR(negative_log_likelihood(logits, 1), std::log(2.0), 1e-7);
  EXPECT_NEAR(negative_log_likelihood(logits, 2), std::log(4.0), 1e-7);
  EXPECT_EQ(most_likely(logits), 1);
  EXPECT_EQ(most_likely(std::vector<float>{3.0F, 3.0F}), 0);
  // Large logits do not overflow.
  EXPECT_NEAR(negative_log_likelihood(std::vector<float>{1e4F, 1e4F}, 0), std::log(2.0), 1e-9);
}

}  // namespace
}  // namespace qevict
