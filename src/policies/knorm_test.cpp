#include <gtest/gtest.h>

#include "policies/kvzap.h"
#include "policies/one_shot.h"
#include "policies/selector_test.h"

namespace qevict {
namespace {

TEST(KeyNorm, KeepsTheSmallestKeysOfEachHead) {
  PromptScene scene({.n_heads = 2, .n_kv_heads = 2, .head_dim = 2, .n_tokens = 3});
  std::ranges::copy(std::vector<float>{3, 4, 0, 1, 1, 0}, scene.k(0));
  std::ranges::copy(std::vector<float>{1, 0, 2, 2, 0, 0}, scene.k(1));
  EXPECT_EQ(knorm_scores(scene.view)[0], (std::vector<float>{-5, -1, -1}));
  EXPECT_EQ(select(*make_selector("knorm"), scene.view, 1), (KeptTokens{{1}, {2}}));
}

TEST(KvZap, OneAndTwoLayers) {
  const std::vector<float> w1 = {1, 2, 0, -1}, b1 = {0, 1}, w2 = {2, 1}, b2 = {0.5F};
  const std::vector<float> states = {1, 1, 10, 0};
  const auto linear = kvzap_scores({2, 0, 2, w1, b1, {}, {}}, states);
  EXPECT_EQ(linear, (std::vector<std::vector<float>>{{3, 10}, {0, 1}}));
  const auto mlp = kvzap_scores({2, 2, 1, w1, b1, w2, b2}, states);
  EXPECT_NEAR(mlp[0][0], 2 * 2.99595 + 0.0 + 0.5, 1e-4);  // gelu(3), gelu(0)
  EXPECT_NEAR(mlp[0][1], 2 * 10.0 + 0.841345 + 0.5, 1e-4);
}

}  // namespace
}  // namespace qevict
