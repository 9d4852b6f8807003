#include <gtest/gtest.h>

#include <set>

#include "kv/budget.h"
#include "policies/registry.h"

namespace qevict {
namespace {

std::vector<float> scores_of(const CacheConfig& config, const std::vector<WindowView>& windows) {
  const auto scorer = find_policy("qevict")->make_scorer(config);
  std::vector<float> scores(windows.size(), 99.0F);
  scorer->score({0, 1, 100, windows}, scores);
  return scores;
}

TEST(Policies, NamesAreUniqueAndFound) {
  std::set<std::string> names;
  for (const PolicySpec& policy : policies()) {
    EXPECT_TRUE(names.insert(policy.name).second);
    EXPECT_EQ(find_policy(policy.name), &policy);
    EXPECT_FALSE(policy.paper.empty());
    EXPECT_FALSE(policy.parameters.empty());
  }
  EXPECT_TRUE(names.contains("full"));
  EXPECT_TRUE(names.contains("qevict"));
  EXPECT_EQ(find_policy("unknown"), nullptr);
}

TEST(Policies, ErrorOfAnUnknownNameListsTheKnownOnes) {
  const auto unknown = require_policy("magic");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::BadInput);
  for (const PolicySpec& policy : policies()) {
    EXPECT_NE(unknown.error().message.find(policy.name), std::string::npos);
    EXPECT_EQ(require_policy(policy.name).value(), &policy);
  }
  EXPECT_NE(unknown.error().message.find("'magic'"), std::string::npos);
}

TEST(Policies, EachMakesAPureScorerAndAnAllocator) {
  const std::vector<WindowView> windows = {
      {0, Tier::Full, 1.0F, 2.0F}, {3, Tier::Quantized, 0.5F, 1.0F}, {4, Tier::Local, 0.0F, 4.0F}};
  for (const PolicySpec& policy : policies()) {
    if (policy.schedule == Schedule::Once) continue;  // selectors_test.cpp
    const auto scorer = policy.make_scorer(CacheConfig{});
    std::vector<float> first(3), second(3, 7.0F);
    const float sums[3][2] = {{1.0F, 2.0F}, {3.0F, 0.5F}, {0.25F, 0.25F}};
    const HeadRecord records[3] = {{sums[0]}, {sums[1]}, {sums[2]}};
    const double inverse[2] = {0.1, 0.4};
    EvictedHeads evicted;
    evicted.reset(1);
    const LayerView view{0, 2, 64, windows, {1, records, &evicted, inverse}};
    scorer->score(view, first);
    scorer->score(view, second);
    EXPECT_EQ(first, second) << policy.name;
    if (policy.ladder) continue;
    BudgetPlan plan;
    plan.quota = {3, 17};
    const auto allocator = policy.make_allocator(CacheConfig{});
    const TierQuota lower = allocator->quota(plan, 0, 2), upper = allocator->quota(plan, 1, 2);
    EXPECT_LE(lower.n_full + upper.n_full, 2 * plan.quota.n_full) << policy.name;
    EXPECT_LE(lower.n_quantized + upper.n_quantized, 2 * plan.quota.n_quantized) << policy.name;
  }
}

TEST(FullPolicy, NeedsNothingAndNeverRoutes) {
  const PolicySpec* full = find_policy("full");
  EXPECT_EQ(full->schedule, Schedule::Never);
  const Needs needs = full->make_scorer(CacheConfig{})->needs();
  EXPECT_FALSE(needs.mass);
  EXPECT_FALSE(needs.key_norm);
}

TEST(QevictPolicy, MassRankersDeclarePowerAndDecayAndScoreTheSum) {
  CacheConfig config;
  const std::vector<WindowView> windows = {{0, Tier::Full, 1.5F, 9.0F},
                                           {1, Tier::Local, 2.5F, 1.0F}};
  const auto needs = [&] { return find_policy("qevict")->make_scorer(config)->needs(); };
  EXPECT_TRUE(needs().mass);
  EXPECT_FALSE(needs().key_norm);
  EXPECT_EQ(needs().mass_power, 1.0);
  EXPECT_EQ(needs().mass_decay, 1.0);
  EXPECT_EQ(scores_of(config, windows), (std::vector<float>{1.5F, 2.5F}));
  config.ranker = {Ranker::Kind::Decay, 0.5};
  EXPECT_EQ(needs().mass_decay, 0.5);
  EXPECT_EQ(needs().mass_power, 1.0);
  config.ranker = {Ranker::Kind::PNorm, 2.0};
  EXPECT_EQ(needs().mass_power, 2.0);
  EXPECT_EQ(needs().mass_decay, 1.0);
}

TEST(QevictPolicy, KeyL2KeepsLowNormsAndAsksForNoMass) {
  CacheConfig config;
  config.ranker.kind = Ranker::Kind::KeyL2;
  const Needs needs = find_policy("qevict")->make_scorer(config)->needs();
  EXPECT_FALSE(needs.mass);
  EXPECT_TRUE(needs.key_norm);
  const auto scores = scores_of(config, {{0, Tier::Full, 9.0F, 3.0F}, {1, Tier::Full, 0.0F, 1.0F}});
  EXPECT_LT(scores[0], scores[1]);
}

}  // namespace
}  // namespace qevict
