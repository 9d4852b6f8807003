// What every registered policy must keep, with real attention: a new policy is tested here without
// a line of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "attention/attention_test.h"

namespace qevict {
namespace {

class AnyPolicy : public testing::TestWithParam<std::string> {
 protected:
  const PolicySpec& policy() const { return *find_policy(GetParam()); }

  // The policy's own storage at a budget.
  CacheConfig config(double ratio) const {
    CacheConfig c = qevict_config(ratio);
    c.policy = GetParam();
    configure_policy(policy(), c);
    return c;
  }

  static std::unique_ptr<AttentionDriver> driver(const CacheConfig& config,
                                                 const PolicySpec& policy) {
    Geometry g = small(4, 2, 16);
    g.window = config.window;
    g.quant_bits = config.quant_bits;
    auto made = std::make_unique<AttentionDriver>(g, config, policy, 2, 19, 2);
    made->cache().set_value_norms([](int, int, const float* v, int n, float* norms) -> Status {
      for (int i = 0; i < n; ++i) norms[i] = 1.0F + v[i * 16] * v[i * 16];
      return {};
    });
    return made;
  }
  std::unique_ptr<AttentionDriver> driver(double ratio) const {
    return driver(config(ratio), policy());
  }

  std::size_t quantized_bytes(const LayerEvent& e, const Geometry& unit) const {
    if (!policy().ladder) return e.quantized.size() * unit.quantized_window_bytes();
    std::size_t sum = e.quantized.empty() ? 0 : static_cast<std::size_t>(ladder_range_bytes(unit));
    for (RungId r = 0; r < kMaxRungs; ++r) {
      sum += e.rungs[r].size() * static_cast<std::size_t>(rung_window_bytes(unit, r));
    }
    return sum;
  }

  using Outputs = std::vector<std::vector<float>>;
  static Outputs story(AttentionDriver& d, bool check) {
    Outputs all;
    const auto keep = [&](Outputs outs) { std::ranges::move(outs, std::back_inserter(all)); };
    keep(d.prompt(300, 30, 96, check));
    for (int i = 0; i < 30; ++i) keep(d.step(check));
    keep(d.prompt(70, 20, 64, check));
    for (int i = 0; i < 20; ++i) keep(d.step(check));
    return all;
  }
};

// Policies whose cache is made of windows: not the quantisers (row_codec_test.cpp).
class Conformance : public AnyPolicy {};

TEST_P(Conformance, AttendsToExactlyWhatItHolds) {
  const auto d = driver(0.5);
  story(*d, true);
}

TEST_P(Conformance, HoldsTheFormulasBytesWithinTheBudgetAndUsesThem) {
  const auto d = driver(0.5);
  const KvCache& cache = d->cache();
  std::vector<LayerEvent> events;
  d->cache().set_trace([&](const LayerEvent& e) { events.push_back(e); });
  story(*d, false);
  ASSERT_FALSE(events.empty());
  const Geometry& unit = cache.unit_geometry();
  const std::size_t token = unit.token_bytes();
  const auto units = static_cast<std::size_t>(cache.n_layers() * cache.units_per_layer());
  ASSERT_EQ(events.size() % units, 0U);
  const bool once = policy().schedule == Schedule::Once;
  const bool never = policy().schedule == Schedule::Never;
  const std::int64_t budget_tokens[] = {330 / 2, 420 / 2};
  for (std::size_t first = 0; first < events.size(); first += units) {
    std::size_t held = 0;
    bool evicted = false;
    for (std::size_t i = first; i < first + units; ++i) {
      const LayerEvent& e = events[i];
      EXPECT_EQ(e.bytes.full, e.full.size() * unit.full_window_bytes());
      EXPECT_EQ(e.bytes.quantized, quantized_bytes(e, unit));
      EXPECT_EQ(e.bytes.sink, token * cache.config().n_sink);
      EXPECT_EQ(e.bytes.local % token, 0U);
      EXPECT_EQ(e.head >= 0, cache.per_head());
      held += e.bytes.total();
      evicted |= !e.evicted.empty();
    }
    if (never) continue;
    const bool second = events[first].n_tokens > 330;
    auto budget = static_cast<std::int64_t>(token * units) * budget_tokens[second ? 1 : 0];
    // What is generated stays: its room is left by the prompt's tokens.
    if (once) budget -= static_cast<std::int64_t>(token * units) * (second ? 20 : 30);
    // A zone that cannot be cut in windows may exceed n_local by part of one.
    const std::int64_t remainder = static_cast<std::int64_t>(token * units) * (unit.window - 1);
    EXPECT_LE(static_cast<std::int64_t>(held), budget + remainder)
        << "event " << events[first].event;
    if (!evicted) continue;
    // Less than a window of each tier is left over; selectors that split by head may round.
    const std::size_t window = unit.full_window_bytes() + unit.quantized_window_bytes();
    const std::int64_t unused = budget - static_cast<std::int64_t>(held);
    EXPECT_LT(unused, static_cast<std::int64_t>(once ? budget / 20 : units * window));
  }
  EXPECT_FALSE(cache.budget().over_budget);
  if (once)
    EXPECT_LE(static_cast<std::int64_t>(cache.bytes().total()), cache.budget().budget_bytes);
}

TEST_P(Conformance, NeverExceedsAStrictBudget) {
  if (policy().schedule == Schedule::Never) GTEST_SKIP() << "has no budget";
  CacheConfig wanted = config(0.5);
  // A ladder's policy is strict without being asked.
  const bool every_window = policy().schedule == Schedule::EveryWindow;
  if (every_window && !policy().ladder) wanted.strict_budget = true;
  const auto d = driver(wanted, policy());
  const KvCache& cache = d->cache();
  d->prompt(300, 30, 96, false);
  const auto budget = static_cast<std::size_t>(cache.budget().budget_bytes);
  for (int i = 0; i < 30; ++i) {
    EXPECT_LE(cache.bytes().total(), budget) << i;
    d->step(false);
  }
  EXPECT_LE(cache.bytes().total(), budget);
  // What was held right before each event counts, too.
  if (every_window) EXPECT_LE(cache.peak_bytes(), budget);
}

// The full cache in the policy's own windows: how keys are grouped decides the order of sums.
TEST_P(Conformance, AnAmpleBudgetIsTheFullCacheBitForBit) {
  const CacheConfig wanted = config(1.0);
  const bool once = policy().schedule == Schedule::Once;
  PolicySpec full = *find_policy("full");
  full.per_head = policy().per_head || once;
  const Outputs own = story(*driver(wanted, policy()), false);
  const Outputs all = story(*driver(wanted, full), false);
  if (!once) {
    EXPECT_EQ(own, all);
    return;
  }
  // Generated tokens stay where they were written, the full cache ranks them on.
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < all[i].size(); ++j) ASSERT_NEAR(own[i][j], all[i][j], 1e-4);
  }
}

TEST_P(AnyPolicy, TakesPromptsShorterThanAnyZone) {
  const auto d = driver(0.3);
  const bool check = !policy().make_codec;
  d->prompt(1, 3, 16, check);
  for (int i = 0; i < 3; ++i) d->step(check);
  d->prompt(2, 60, 16, check);
  for (int i = 0; i < 60; ++i) d->step(check);
  d->prompt(3, 5, 16, check);
  d->step(check);
  EXPECT_EQ(d->cache().n_tokens(), 70);
}

TEST_P(AnyPolicy, ACancelledPromptLeavesNoTrace) {
  const auto with = driver(0.4);
  const auto without = driver(0.4);
  for (AttentionDriver* d : {with.get(), without.get()}) {
    d->prompt(200, 40, 64, false);
    for (int i = 0; i < 9; ++i) d->step(false);
  }
  const std::size_t bytes = with->cache().bytes().total();
  with->cancelled_prompt(50, 100);
  EXPECT_EQ(with->cache().bytes().total(), bytes);
  for (int i = 0; i < 31; ++i) EXPECT_EQ(with->step(false), without->step(false));
  EXPECT_EQ(with->prompt(20, 5, 64, false), without->prompt(20, 5, 64, false));
  for (int u = 0; u < with->cache().units_per_layer(); ++u) {
    EXPECT_EQ(with->masses(1, u), without->masses(1, u));
  }
}

std::vector<std::string> names(bool quantisers) {
  std::vector<std::string> all;
  for (const PolicySpec& policy : policies()) {
    if (quantisers || !policy.make_codec) all.push_back(policy.name);
  }
  return all;
}
const auto kName = [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace(name, '+', '_');
  return name;
};
INSTANTIATE_TEST_SUITE_P(Policies, Conformance, testing::ValuesIn(names(false)), kName);
INSTANTIATE_TEST_SUITE_P(Policies, AnyPolicy, testing::ValuesIn(names(true)), kName);

}  // namespace
}  // namespace qevict
