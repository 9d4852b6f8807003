#include "kv/budget.h"

#include <gtest/gtest.h>

namespace qevict {
namespace {

Geometry paper_geometry() {
  Geometry g;
  g.n_heads = 32;
  g.n_kv_heads = 8;
  g.head_dim = 128;
  return g;
}

CacheConfig with_budget(const char* text) {
  CacheConfig config;
  config.budget = *KvBudget::parse(text);
  return config;
}

TEST(Budget, MatchesThePapersOracle) {
  const Geometry g = paper_geometry();
  EXPECT_EQ(g.full_window_bytes(), 32768U);
  EXPECT_EQ(g.quantized_window_bytes(), 8448U);
  const auto plan = solve_budget(g, 32, with_budget("0.2"), 32768 - 64, 64);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->context_tokens, 32768);
  EXPECT_EQ(plan->total_tokens, 6553);
  EXPECT_EQ(plan->quota, (TierQuota{244, 2211}));
  EXPECT_EQ(plan->layer_bytes, 6553 * 4096);
  EXPECT_EQ(plan->budget_bytes, std::int64_t{32} * 6553 * 4096);
  EXPECT_EQ(plan->history_bytes, std::int64_t{6553 - 37} * 4096);
  EXPECT_FALSE(plan->uncompressed);
  EXPECT_FALSE(plan->raised);
}

TEST(Budget, FormulaGivesNoWindowsBelowSinksAndLocal) {
  const Geometry g = paper_geometry();
  EXPECT_EQ(budget_quota(g, 5, 5, 32, 0.7), (TierQuota{0, 0}));
  EXPECT_EQ(budget_quota(g, 37, 5, 32, 0.7), (TierQuota{0, 0}));
  EXPECT_EQ(budget_quota(g, 45, 5, 32, 0.0), (TierQuota{1, 0}));
  EXPECT_EQ(budget_quota(g, 45, 5, 32, 1.0), (TierQuota{0, 3}));
}

TEST(Budget, RaisesAFractionThatIsTooSmall) {
  const auto plan = solve_budget(paper_geometry(), 2, with_budget("0.05"), 90, 10);
  ASSERT_TRUE(plan.has_value());
  EXPECT_TRUE(plan->raised);
  EXPECT_EQ(plan->total_tokens, 5 + 32 + 8);
  EXPECT_FALSE(plan->uncompressed);
}

TEST(Budget, RaisesNoFurtherThanTheContext) {
  const auto plan = solve_budget(paper_geometry(), 2, with_budget("0.2"), 10, 4);
  ASSERT_TRUE(plan.has_value());
  EXPECT_TRUE(plan->raised);
  EXPECT_EQ(plan->total_tokens, 14);
  EXPECT_TRUE(plan->uncompressed);
}

TEST(Budget, RefusesTokensAndBytesThatAreTooFewAndNamesTheSmallest) {
  const Geometry g = paper_geometry();
  auto plan = solve_budget(g, 2, with_budget("44tok"), 900, 100);
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().code, ErrorCode::BadInput);
  EXPECT_NE(plan.error().message.find("at least 45tok"), std::string::npos) << plan.error().message;
  EXPECT_TRUE(solve_budget(g, 2, with_budget("45tok"), 900, 100).has_value());

  plan = solve_budget(g, 2, with_budget("100KiB"), 900, 100);
  ASSERT_FALSE(plan.has_value());
  EXPECT_NE(plan.error().message.find("at least 368640B"), std::string::npos);
  EXPECT_TRUE(solve_budget(g, 2, with_budget("368640B"), 900, 100).has_value());
  EXPECT_FALSE(solve_budget(g, 2, with_budget("368639B"), 900, 100).has_value());
}

TEST(Budget, CountsBytesOverAllLayers) {
  const auto plan = solve_budget(paper_geometry(), 32, with_budget("64MiB"), 4000, 1000);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->total_tokens, 512);
  EXPECT_LE(plan->budget_bytes, 64 << 20);
}

TEST(Budget, CompressesNothingWhenTheContextFits) {
  for (const char* text : {"1", "100tok", "5000tok"}) {
    const auto plan = solve_budget(paper_geometry(), 2, with_budget(text), 90, 10);
    ASSERT_TRUE(plan.has_value());
    EXPECT_TRUE(plan->uncompressed);
    EXPECT_EQ(plan->quota.n_full, (100 - 5 + 7) / 8);
    EXPECT_EQ(plan->quota.n_quantized, 0);
    EXPECT_FALSE(plan->raised);
  }
  EXPECT_FALSE(solve_budget(paper_geometry(), 2, with_budget("99tok"), 90, 10)->uncompressed);
}

TEST(Budget, LocalShareIsATokenShareOfTheBudget) {
  CacheConfig config = with_budget("400tok");
  config.local_share = 0.25;
  auto plan = solve_budget(paper_geometry(), 1, config, 900, 100);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->n_local, 100);
  config.budget = *KvBudget::parse("2tok");
  plan = solve_budget(paper_geometry(), 1, config, 900, 100);
  ASSERT_FALSE(plan.has_value());
  // 17 = 5 sinks + floor(17/4) local + 8.
  EXPECT_NE(plan.error().message.find("at least 17tok"), std::string::npos) << plan.error().message;
}

TEST(Budget, StrictReservesWhatWaitsForRouting) {
  CacheConfig config = with_budget("400tok");
  config.strict_budget = true;
  const auto plan = solve_budget(paper_geometry(), 1, config, 900, 100);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->reserved_tokens, (900 - 37) % 8 + 8);
  EXPECT_EQ(plan->history_bytes, (400 - 37 - plan->reserved_tokens) * 4096);
  config.local_rule = LocalRule::Ceil;
  EXPECT_EQ(solve_budget(paper_geometry(), 1, config, 900, 100)->reserved_tokens,
            (900 - 37) % 8);  // ceil holds up to one window less
}

TEST(Budget, RefusesAContextThatPositionsCannotCount) {
  EXPECT_FALSE(solve_budget(paper_geometry(), 1, with_budget("0.2"), 2000000000, 2000000000));
}

TEST(EvictableWindows, FloorProtectsTheNewestTokensAndCeilCountsThePartialWindow) {
  const struct {
    int n, sink, local, window, floor, ceil;
  } cases[] = {{82, 4, 8, 4, 17, 18}, {200, 5, 32, 8, 20, 21},  {277, 5, 32, 8, 30, 30},
               {3, 5, 32, 8, 0, 0},   {37, 5, 32, 8, 0, 0},     {38, 5, 32, 8, 0, 1},
               {45, 5, 32, 8, 1, 1},  {243, 0, 32, 1, 211, 211}};
  for (const auto& c : cases) {
    EXPECT_EQ(evictable_windows(c.n, c.sink, c.local, c.window, LocalRule::Floor), c.floor) << c.n;
    EXPECT_EQ(evictable_windows(c.n, c.sink, c.local, c.window, LocalRule::Ceil), c.ceil) << c.n;
  }
}

TEST(EvictableWindows, CeilNeverTakesAPartialWindow) {
  for (int n = 0; n < 100; ++n) {
    for (int local : {0, 2, 8}) {
      const auto w = evictable_windows(n, 3, local, 8, LocalRule::Ceil);
      EXPECT_LE(w * 8, std::max(0, n - 3));
    }
  }
}

TEST(LocalRemainder, IsConstantAlongARunAndBoundsTheLocalZone) {
  for (const LocalRule rule : {LocalRule::Floor, LocalRule::Ceil}) {
    for (int start = 1; start < 90; ++start) {
      const auto remainder = local_remainder(start, 5, 16, 8, rule);
      for (int n = start; n < start + 200; n += 8) {
        EXPECT_EQ(local_remainder(n, 5, 16, 8, rule), remainder);
        const auto local = n - 5 - 8 * evictable_windows(n, 5, 16, 8, rule);
        EXPECT_LE(local, 16 + remainder);
      }
    }
  }
}

}  // namespace
}  // namespace qevict
