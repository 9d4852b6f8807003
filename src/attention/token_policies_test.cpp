// Which tokens the token-level policies keep, against rankings made here from an uncompressed twin.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "attention/attention_test.h"

namespace qevict {
namespace {

constexpr int kBudget = 50, kPrompt = 120;

std::unique_ptr<AttentionDriver> driver(const std::string& name, double budget,
                                        std::vector<PolicyParameter> parameters = {}) {
  CacheConfig config;
  config.policy = name;
  config.policy_parameters = std::move(parameters);
  config.budget = {KvBudget::Unit::Tokens, budget};
  const auto policy = require_policy(config);
  EXPECT_TRUE(policy.has_value()) << policy.error().message;
  configure_policy(**policy, config);
  Geometry g = small(4, 2, 16);
  g.window = config.window;
  return std::make_unique<AttentionDriver>(g, config, **policy, 1, 31, 2);
}

// Positions that a unit holds.
std::set<TokenPos> held(AttentionDriver& d, int layer, int u) {
  const KvCache& cache = d.cache();
  const LayerCache& unit = cache.unit(layer, u);
  std::set<TokenPos> positions;
  for (int i = 0; i < unit.recent().n_sinks(); ++i) positions.insert(i);
  for (const WindowId id : unit.full().ids()) positions.insert(cache.config().n_sink + id);
  for (TokenPos p = unit.local_begin(); p < cache.n_tokens(); ++p) positions.insert(p);
  return positions;
}

// The `count` positions below `end` with the most mass, in a cache that holds everything.
std::set<TokenPos> best(AttentionDriver& twin, int layer, int u, int count, TokenPos end) {
  const LayerCache& unit = twin.cache().unit(layer, u);
  std::vector<std::pair<double, TokenPos>> order;
  for (int i = 0; i < unit.full().size(); ++i) {
    order.emplace_back(-unit.full().mass()[i], unit.full().ids()[i]);
  }
  for (std::size_t i = 0; i < unit.local_mass().size(); ++i) {
    order.emplace_back(-unit.local_mass()[i], unit.local_begin() + static_cast<TokenPos>(i));
  }
  std::erase_if(order, [&](const auto& x) { return x.second >= end; });
  std::ranges::sort(order);
  std::set<TokenPos> positions;
  for (int i = 0; i < count; ++i) positions.insert(order[i].second);
  return positions;
}

TEST(StreamingLlm, KeepsTheFirstAndTheNewestTokens) {
  for (const int sinks : {4, 7}) {
    const auto d = sinks == 4 ? driver("streaming_llm", kBudget)
                              : driver("streaming_llm", kBudget, {{"n_sink", "7"}});
    d->prompt(kPrompt, 30, 64, false);
    for (int step = 0; step <= 30; ++step) {
      std::set<TokenPos> want;
      for (TokenPos p = 0; p < sinks; ++p) want.insert(p);
      for (TokenPos p = d->cache().n_tokens() - (kBudget - sinks); p < d->cache().n_tokens(); ++p) {
        want.insert(p);
      }
      ASSERT_EQ(held(*d, 1, 0), want) << step;
      if (step < 30) d->step(false);
    }
  }
}

TEST(Tova, RanksByTheLastQueryAlone) {
  const auto d = driver("tova", kBudget), twin = driver("tova", 1000);
  d->prompt(kPrompt, 20, 64, false);
  twin->prompt(kPrompt, 20, 64, false);
  for (const int layer : {0, 1}) {
    std::set<TokenPos> want = best(*twin, layer, 0, kBudget - 1, kPrompt - 1);
    want.insert(kPrompt - 1);
    EXPECT_EQ(held(*d, layer, 0), want);
  }
  for (int step = 0; step < 20; ++step) {
    const std::set<TokenPos> before = held(*d, 0, 0);
    d->step(true);
    const std::set<TokenPos> after = held(*d, 0, 0);
    EXPECT_EQ(after.size(), std::size_t{kBudget});
    EXPECT_TRUE(after.contains(d->cache().n_tokens() - 1));
    // One of those that were there has gone, none has come back.
    std::vector<TokenPos> gone;
    std::ranges::set_difference(before, after, std::back_inserter(gone));
    EXPECT_EQ(gone.size(), 1U);
    EXPECT_NEAR(d->mass(0), 1.0, 0.5) << "mass of one step";
    EXPECT_LT(d->mass(0), 1.0);
  }
}

TEST(H2o, KeepsEachHeadsHeavyHittersAndRecentTokens) {
  for (const int recent : {25, 10}) {
    const std::vector<PolicyParameter> share = {{"recent", "0.2"}};
    const auto d = driver("h2o", kBudget, recent == 25 ? std::vector<PolicyParameter>() : share);
    const auto twin = driver("h2o", 1000);
    d->prompt(kPrompt, 20, 64, false);
    twin->prompt(kPrompt, 20, 64, false);
    for (int u = 0; u < 2; ++u) {
      std::set<TokenPos> want = best(*twin, 1, u, kBudget - recent, kPrompt - recent);
      for (TokenPos p = kPrompt - recent; p < kPrompt; ++p) want.insert(p);
      EXPECT_EQ(held(*d, 1, u), want);
    }
    EXPECT_NE(held(*d, 1, 0), held(*d, 1, 1));
    for (int step = 0; step < 20; ++step) {
      d->step(false);
      EXPECT_EQ(held(*d, 0, 1).size(), std::size_t{kBudget});
    }
  }
}

TEST(Variants, DifferFromQevictInWhatTheirNamesSay) {
  CacheConfig config;
  config.n_sink = 3;
  const auto made = [&](const char* name) {
    CacheConfig c = config;
    c.policy = name;
    configure_policy(*find_policy(name), c);
    EXPECT_EQ(c.n_sink, 3);
    EXPECT_EQ(c.n_local, 32);
    EXPECT_TRUE(find_policy(name)->make_scorer(c)->needs().mass);
    return c;
  };
  EXPECT_EQ(made("r1").window, 1);
  EXPECT_EQ(made("r1").quant_share, 0.0);
  EXPECT_EQ(made("r2").window, 8);
  EXPECT_EQ(made("r2").quant_share, 0.0);
  EXPECT_EQ(made("r4").window, 32);
  EXPECT_EQ(made("r4").quant_share, 0.7);
}

}  // namespace
}  // namespace qevict
