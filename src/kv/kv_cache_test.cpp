#include "kv/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kv/kv_cache_model.h"

namespace qevict {
namespace {

Geometry small_geometry(int window = 8, int bits = 2) {
  Geometry g;
  g.n_heads = 4;
  g.n_kv_heads = 2;
  g.head_dim = 8;
  g.window = window;
  g.quant_bits = bits;
  return g;
}

CacheConfig small_config(const Geometry& g) {
  CacheConfig config;
  config.window = g.window;
  config.quant_bits = g.quant_bits;
  config.n_local = 16;
  config.budget = {KvBudget::Unit::Ratio, 0.4};
  return config;
}

struct Scenario {
  const char* name;
  int window = 8, bits = 2, first_prompt = 131;
  void (*change)(CacheConfig&) = [](CacheConfig&) {};
  bool key_norm = false;
  Schedule schedule = Schedule::EveryWindow;
  bool per_head = false;
};

class KvCacheProperty : public testing::TestWithParam<Scenario> {};

TEST_P(KvCacheProperty, HoldsEveryInvariantAfterEachStepOfManyPrompts) {
  const Scenario& s = GetParam();
  const Geometry g = small_geometry(s.window, s.bits);
  CacheConfig config = small_config(g);
  s.change(config);
  Driver driver(g, 2, config, test_policy(s.schedule, s.key_norm, s.per_head), 5);
  const Driver::Round rounds[] = {{s.first_prompt, 120}, {40, 61}, {1, 30}, {90, 25}};
  ASSERT_NO_FATAL_FAILURE(driver.check_rounds(rounds));
  const CacheCounters counters = driver.cache().counters();
  EXPECT_EQ(counters.promotions, driver.promotions_seen());
  EXPECT_EQ(counters.reactivations, driver.reactivations_seen());
}

const Scenario kScenarios[] = {
    {"defaults"},
    {"int4", 8, 4},
    {"window4", 4, 2, 150},
    {"window16", 16, 2, 200},
    {"aligned", 8, 2, 133},
    {"short_prompt", 8, 2, 3},
    {"prompt_inside_local", 8, 2, 17},
    {"ceil", 8, 2, 130, [](CacheConfig& c) { c.local_rule = LocalRule::Ceil; }},
    {"ceil_with_small_local", 16, 2, 130,
     [](CacheConfig& c) {
       c.local_rule = LocalRule::Ceil;
       c.n_local = 5;
     }},
    {"no_promotion", 8, 2, 131, [](CacheConfig& c) { c.promotion = false; }},
    {"hard_eviction", 8, 2, 131, [](CacheConfig& c) { c.quant_share = 0.0; }},
    {"quantized_only", 8, 2, 131, [](CacheConfig& c) { c.quant_share = 1.0; }},
    {"strict", 8, 2, 131, [](CacheConfig& c) { c.strict_budget = true; }},
    {"strict_ceil", 8, 2, 131,
     [](CacheConfig& c) {
       c.strict_budget = true;
       c.local_rule = LocalRule::Ceil;
     }},
    {"token_level", 1, 2, 60, [](CacheConfig& c) { c.quant_share = 0.0; }},
    {"no_sinks_no_local", 8, 2, 100,
     [](CacheConfig& c) {
       c.n_sink = 0;
       c.n_local = 0;
     }},
    {"local_share", 8, 2, 131, [](CacheConfig& c) { c.local_share = 0.25; }},
    {"fixed_tokens", 8, 2, 131, [](CacheConfig& c) { c.budget = {KvBudget::Unit::Tokens, 80}; }},
    // Fits at first, is compressed by the first append.
    {"compressed_late", 8, 2, 60, [](CacheConfig& c) { c.budget = {KvBudget::Unit::Tokens, 190}; }},
    {"uncompressed", 8, 2, 131, [](CacheConfig& c) { c.budget.value = 1.0; }},
    {"key_norm", 8, 2, 131, [](CacheConfig&) {}, true},
    {"never", 8, 2, 131, [](CacheConfig&) {}, false, Schedule::Never},
    {"heads", 8, 2, 131, [](CacheConfig&) {}, false, Schedule::EveryWindow, true},
    {"heads_token_level", 1, 2, 60, [](CacheConfig& c) { c.quant_share = 0.0; }, false,
     Schedule::EveryWindow, true},
    {"heads_key_norm", 4, 2, 90, [](CacheConfig&) {}, true, Schedule::EveryWindow, true},
};
INSTANTIATE_TEST_SUITE_P(Scenarios, KvCacheProperty, testing::ValuesIn(kScenarios),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(KvCache, HeadsOfALayerKeepWindowsOfTheirOwnAndTellTheTraceWhichTheyAre) {
  const Geometry g = small_geometry();
  Driver driver(g, 2, small_config(g), test_policy(Schedule::EveryWindow, false, true), 5);
  std::vector<LayerEvent> events;
  driver.cache().set_trace([&](const LayerEvent& e) { events.push_back(e); });
  ASSERT_TRUE(driver.prompt(131, 16).has_value());
  for (int i = 0; i < 16; ++i) driver.step();
  const KvCache& cache = driver.cache();
  ASSERT_EQ(cache.units_per_layer(), 2);
  EXPECT_EQ(cache.unit_geometry().n_heads, g.group_size());
  ASSERT_EQ(events.size(), 3U * 2 * 2);
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].layer, static_cast<int>(i / 2 % 2));
    EXPECT_EQ(events[i].head, static_cast<int>(i % 2));
  }
  EXPECT_NE(events[8].full, events[9].full) << "heads have masses of their own";
  // The budget of the model's geometry, split evenly: as many windows as a whole layer would hold.
  EXPECT_EQ(cache.unit(0, 0).full().size(), cache.budget().quota.n_full);
  EXPECT_EQ(cache.unit(1, 1).quantized().size(), cache.budget().quota.n_quantized);
  EXPECT_EQ(cache.counters().events, 3);
}

TEST(KvCache, ReachesPromotionsAndReactivationsInTheDefaultScenario) {
  const Geometry g = small_geometry();
  Driver driver(g, 1, small_config(g), test_policy(Schedule::EveryWindow, false), 5);
  ASSERT_TRUE(driver.prompt(131, 200).has_value());
  for (int i = 0; i < 200; ++i) driver.step();
  EXPECT_GT(driver.promotions_seen(), 0);
  EXPECT_GT(driver.reactivations_seen(), 0);
  EXPECT_GT(driver.cache().layer(0).n_evicted(), 0);
  EXPECT_EQ(driver.cache().counters().events, 1 + 200 / 8);
}

TEST(KvCache, BecomesUncompressedAgainWhenTheContextFits) {
  // The first prompt plans for many tokens that never come; the second one fits the budget whole.
  for (const bool promotion : {true, false}) {
    const Geometry g = small_geometry();
    CacheConfig config = small_config(g);
    config.budget = {KvBudget::Unit::Tokens, 120};
    config.promotion = promotion;
    Driver driver(g, 1, config, test_policy(Schedule::EveryWindow, false), 9);
    ASSERT_TRUE(driver.prompt(100, 500).has_value());
    for (int i = 0; i < 3; ++i) driver.step();
    const int quantized = driver.cache().layer(0).quantized().size();
    ASSERT_GT(quantized, 0);
    ASSERT_TRUE(driver.prompt(5, 10).has_value());
    EXPECT_TRUE(driver.cache().budget().uncompressed);
    EXPECT_EQ(driver.cache().layer(0).quantized().size(), promotion ? 0 : quantized);
    for (int i = 0; i < 10; ++i) driver.step();
    ASSERT_NO_FATAL_FAILURE(driver.check());
  }
}

class KvCacheRollback : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(PerHead, KvCacheRollback, testing::Bool());

TEST_P(KvCacheRollback, RestoresEveryByte) {
  const Geometry g = small_geometry();
  Driver driver(g, 3, small_config(g), test_policy(Schedule::EveryWindow, false, GetParam()), 5);
  ASSERT_TRUE(driver.prompt(131, 100).has_value());
  for (int i = 0; i < 43; ++i) driver.step();
  const auto before = driver.snapshot();
  for (const int layers : {0, 1, 3}) {
    ASSERT_TRUE(driver.begin_prompt(70, 400).has_value());
    driver.finish_layers(0, layers);
    if (layers > 0) EXPECT_GT(driver.cache().backup_bytes(), 0U);
    driver.rollback();
    EXPECT_EQ(driver.snapshot(), before) << layers;
    ASSERT_NO_FATAL_FAILURE(driver.check());
  }
  // It goes on as if nothing had happened.
  for (int i = 0; i < 30; ++i) {
    driver.step();
    ASSERT_NO_FATAL_FAILURE(driver.check());
  }
}

TEST(KvCache, RollbackOfTheFirstPromptLeavesAnEmptyCache) {
  const Geometry g = small_geometry();
  Driver driver(g, 2, small_config(g), test_policy(Schedule::EveryWindow, false), 5);
  const auto empty = driver.snapshot();
  ASSERT_TRUE(driver.begin_prompt(131, 100).has_value());
  driver.finish_layers(0, 2);
  EXPECT_EQ(driver.cache().backup_bytes(), 0U);
  driver.rollback();
  EXPECT_EQ(driver.snapshot(), empty);
  EXPECT_EQ(driver.cache().bytes().total(), 0U);
  ASSERT_TRUE(driver.prompt(50, 10).has_value());
  ASSERT_NO_FATAL_FAILURE(driver.check());
}

TEST(KvCache, ARefusedPromptChangesNothing) {
  const Geometry g = small_geometry();
  CacheConfig config = small_config(g);
  config.budget = {KvBudget::Unit::Tokens, 20};
  Driver driver(g, 1, config, test_policy(Schedule::EveryWindow, false), 5);
  const auto before = driver.snapshot();
  const Status status = driver.begin_prompt(100, 10);
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message.find("29tok"), std::string::npos) << status.error().message;
  EXPECT_FALSE(driver.begin_prompt(0, 10).has_value());
  EXPECT_FALSE(driver.begin_prompt(10, -1).has_value());
  EXPECT_EQ(driver.snapshot(), before);
  EXPECT_TRUE(driver.prompt(10, 2).has_value());
}

TEST(KvCache, EmitsOneEventALayerWithAscendingWindows) {
  const Geometry g = small_geometry();
  Driver driver(g, 2, small_config(g), test_policy(Schedule::EveryWindow, false), 5);
  std::vector<LayerEvent> events;
  driver.cache().set_trace([&](const LayerEvent& e) { events.push_back(e); });
  ASSERT_TRUE(driver.prompt(131, 48).has_value());
  for (int i = 0; i < 48; ++i) driver.step();
  ASSERT_EQ(events.size(), 2U * 7U);
  std::int64_t promoted = 0, reactivated = 0, first = 0, demoted = 0, evicted = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const LayerEvent& e = events[i];
    EXPECT_EQ(e.event, static_cast<int>(i / 2));
    EXPECT_EQ(e.layer, static_cast<int>(i % 2));
    EXPECT_EQ(e.step, e.event * 8);
    EXPECT_EQ(e.n_tokens, 131 + e.step);
    for (const auto* list : {&e.full, &e.quantized, &e.evicted, &e.promoted, &e.demoted,
                             &e.first_demoted, &e.reactivated, &e.dormant}) {
      EXPECT_TRUE(std::ranges::is_sorted(*list));
    }
    EXPECT_EQ(e.scores.size(), e.full.size() + e.quantized.size() + e.evicted.size());
    EXPECT_EQ(e.bytes.full, e.full.size() * g.full_window_bytes());
    EXPECT_EQ(e.dormant_bytes, e.dormant.size() * g.quantized_window_bytes());
    promoted += static_cast<std::int64_t>(e.promoted.size());
    reactivated += static_cast<std::int64_t>(e.reactivated.size());
    first += static_cast<std::int64_t>(e.first_demoted.size());
    demoted += static_cast<std::int64_t>(e.demoted.size());
    evicted += static_cast<std::int64_t>(e.evicted.size());
  }
  const CacheCounters counters = driver.cache().counters();
  EXPECT_EQ(counters.events, 7);
  EXPECT_EQ(counters.promotions, promoted);
  EXPECT_EQ(counters.reactivations, reactivated);
  EXPECT_EQ(counters.first_demotions, first);
  EXPECT_EQ(counters.demotions, demoted);
  EXPECT_EQ(counters.evictions, evicted);
}

TEST(KvCache, RefusesShapesThatItCannotHold) {
  const PolicySpec policy = test_policy(Schedule::EveryWindow, false);
  const auto refuses = [&](Geometry g, auto change, const char* names) {
    CacheConfig config = small_config(g);
    change(config, g);
    const RopeSpec rope = RopeSpec::plain(g.pairing, 8, 10000.0);
    const auto made = KvCache::create(g, 1, rope, config, policy);
    ASSERT_FALSE(made.has_value()) << names;
    EXPECT_NE(made.error().message.find(names), std::string::npos) << made.error().message;
  };
  refuses(small_geometry(6), [](CacheConfig&, Geometry&) {}, "window");
  refuses(small_geometry(), [](CacheConfig&, Geometry& g) { g.n_heads = 3; }, "query heads");
  refuses(small_geometry(), [](CacheConfig&, Geometry& g) { g.head_dim = 6; }, "head_dim");
  refuses(small_geometry(), [](CacheConfig&, Geometry& g) { g.head_dim = 16; }, "rope");
  refuses(small_geometry(), [](CacheConfig& c, Geometry&) { c.window = 16; }, "window");
  refuses(small_geometry(), [](CacheConfig& c, Geometry&) { c.n_sink = -1; }, "n_sink");
  {
    CacheConfig config = small_config(small_geometry());
    config.fused_attention = false;
    const auto made =
        KvCache::create(small_geometry(), 1, RopeSpec::plain(RopePairing::Neox, 8, 10000.0), config,
                        test_policy(Schedule::EveryWindow, false, true));
    ASSERT_FALSE(made.has_value());
    EXPECT_NE(made.error().message.find("--attention fused"), std::string::npos);
  }
  // Without a Quantized tier any window works.
  const Geometry g = small_geometry(6);
  CacheConfig config = small_config(g);
  config.quant_share = 0.0;
  EXPECT_TRUE(
      KvCache::create(g, 1, RopeSpec::plain(g.pairing, 8, 10000.0), config, policy).has_value());
}

}  // namespace
}  // namespace qevict
