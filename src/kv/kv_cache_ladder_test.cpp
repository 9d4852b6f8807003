// The cache with a precision ladder: the model's part of the driver, and tests.
#include <gtest/gtest.h>

#include <algorithm>

#include "kv/kv_cache_model.h"

namespace qevict {

// Multiples of 1/64: sums are exact in fp32, whatever their order.
std::vector<double> Driver::add_sums(std::vector<float>& record, bool prompt) {
  record.resize(head_record_floats(g_.n_heads));
  std::vector<double> added;
  for (int i = prompt ? 0 : g_.n_heads; i < 2 * g_.n_heads; ++i) {
    added.push_back(random_mass());
    record[i] += static_cast<float>(added.back());
  }
  return added;
}

void Driver::add_step_heads(LayerCache& unit, ModelUnit& m) {
  const auto add_slab = [&](const TierSlab& slab, auto&& group_heads) {
    for (SlotId s = 0; s < slab.size(); ++s) {
      const std::vector<double> added = add_sums(m.windows.at(slab.ids()[s]).heads, false);
      for (int h = 0; h < g_.n_heads; ++h) {
        group_heads(s / kLanes)[(g_.n_heads + h) * kLanes + s % kLanes] +=
            static_cast<float>(added[h]);
      }
    }
  };
  add_slab(unit.full(), [&](int group) { return unit.full_heads(group); });
  for (int r = 0; r < unit.n_rungs(); ++r) {
    add_slab(unit.quantized(r), [&](int group) { return unit.quantized_heads(r, group); });
  }
  const std::size_t n = unit.head_floats();
  for (std::size_t w = 0; w * n < unit.local_heads().size(); ++w) {
    const std::vector<double> added =
        add_sums(m.local_heads[m.n_ranked + static_cast<WindowId>(w)], false);
    for (int h = 0; h < g_.n_heads; ++h) {
      unit.local_heads()[w * n + g_.n_heads + h] += static_cast<float>(added[h]);
    }
  }
}

// Tokens [begin, end) as they were before RoPE. extremes: what they are on their own is appended.
void Driver::widen_range(ModelUnit& m, TokenPos begin, TokenPos end,
                         std::vector<float>* extremes) const {
  const Geometry grids = rung_geometry(g_, kMaxRungs - 1);
  const std::size_t of_head = head_extreme_floats(grids);
  std::vector<float> own(of_head * g_.n_kv_heads);
  for (int h = 0; h < g_.n_kv_heads; ++h) begin_head_extremes(grids, own.data() + h * of_head);
  const int d = g_.head_dim;
  for (TokenPos p = begin; p < end; ++p) {
    std::vector<float> cos(d / 2), sin(d / 2), k(d), v(d);
    rope_angles(rope_, p, cos.data(), sin.data());
    for (int h = 0; h < g_.n_kv_heads; ++h) {
      for (int c = 0; c < d; ++c) {
        k[c] = fp16_to_fp32(m.k[p][h * d + c]);
        v[c] = fp16_to_fp32(m.v[p][h * d + c]);
      }
      rope_rotate(rope_, cos.data(), sin.data(), -1.0F, k.data());
      add_head_extremes(grids, 1, k.data(), v.data(), own.data() + h * of_head);
    }
  }
  m.range.widen(own.data());
  if (extremes != nullptr) extremes->insert(extremes->end(), own.begin(), own.end());
}

// first_local: of the local zone before the event, in a decode step; -1 after a prompt.
void Driver::route_ladder(ModelUnit& m, TokenPos first_local) {
  std::vector<HeadRecord> records;
  std::vector<RungId> stored;
  std::vector<WindowId> ids;
  for (const auto& [id, w] : m.windows) {
    ids.push_back(id);
    stored.push_back(w.rung);
    records.push_back({w.heads.data()});
  }
  std::vector<double> inverse(std::size_t{kHeadSignals} * g_.n_heads);
  head_inverses(records, g_.n_heads, m.evicted_heads, inverse);
  std::vector<float> scores(ids.size());
  score_head_shares({g_.n_heads, records, &m.evicted_heads, inverse}, scores);
  LadderPlan plan;
  plan_ladder(stored, scores, policy_.make_allocator(config_)->ladder(cache_->budget(), 0, 1),
              plan);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (plan.to[i] == kNoRung) continue;
    if (!m.range.fixed()) {
      if (first_local >= 0) widen_range(m, first_local, n_, nullptr);
      m.range.fix();
    }
    move_to_rung(m, ids[i], plan.to[i]);
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (plan.to[i] != kNoRung) continue;
    retire_window(records[i], g_.n_heads, inverse, m.evicted_heads);
    m.windows.erase(ids[i]);
    m.evicted.insert(ids[i]);
  }
}

void Driver::move_to_rung(ModelUnit& m, WindowId id, RungId rung) {
  ModelWindow& w = m.windows.at(id);
  ASSERT_GE(rung, w.rung) << "bits only fall";
  if (rung == w.rung) return;
  const Geometry to = rung_geometry(g_, rung);
  std::vector<std::uint8_t> block(to.quantized_window_bytes());
  std::vector<float> scratch(quantize_scratch_floats(to));
  if (w.tier == Tier::Quantized) {
    ++lowerings_;
    requantize_window(rung_geometry(g_, w.rung), w.block.data(), to, block.data(), scratch.data(),
                      m.range.view());
  } else {
    quantize_window(to, rope_, config_.n_sink + id * g_.window, w.k.data(), w.v.data(),
                    block.data(), scratch.data(), m.range.view());
  }
  w.tier = Tier::Quantized;
  w.rung = rung;
  w.block = block;
}

void Driver::check_rungs(const LayerCache& layer, const ModelUnit& model) const {
  const auto check_slab = [&](const TierSlab& slab, RungId rung) {
    for (SlotId s = 0; s < slab.size(); ++s) {
      const ModelWindow& w = model.windows.at(slab.ids()[s]);
      ASSERT_EQ(w.rung, rung);
      for (int k = 0; k < 2 * g_.n_heads; ++k) ASSERT_EQ(slab.heads(s)[k], w.heads[k]);
    }
  };
  check_slab(layer.full(), kUnquantised);
  std::size_t seen = layer.full().size();
  for (RungId r = 0; r < kMaxRungs; ++r) {
    check_slab(layer.quantized(r), r);
    seen += layer.quantized(r).size();
  }
  ASSERT_EQ(seen, model.windows.size());
  ASSERT_EQ(layer.n_evicted(), static_cast<std::int64_t>(model.evicted.size()));
  ASSERT_EQ(layer.ledger().size(), 0U) << "nothing is ever promoted";
  const QuantRange range = layer.range();
  ASSERT_EQ(range.keys != nullptr, model.range.fixed());
  for (int i = 0; model.range.fixed() && i < 2 * g_.n_kv_heads * g_.head_dim; ++i) {
    ASSERT_EQ(range.keys[i], model.range.view().keys[i]) << i;
  }
  for (int i = 0; model.range.fixed() && i < 2 * g_.n_kv_heads; ++i) {
    ASSERT_EQ(range.values[i], model.range.view().values[i]) << i;
  }
  const std::size_t n = layer.head_floats();
  for (std::size_t i = 0; i < layer.local_heads().size(); ++i) {
    const auto it = model.local_heads.find(model.n_ranked + static_cast<WindowId>(i / n));
    const bool known = it != model.local_heads.end() && !it->second.empty();
    ASSERT_EQ(layer.local_heads()[i], known ? it->second[i % n] : 0.0F);
  }
}

namespace {

Geometry small_geometry(int window = 8) {
  Geometry g;
  g.n_heads = 6;
  g.n_kv_heads = 2;
  g.head_dim = 16;
  g.window = window;
  return g;
}

CacheConfig small_config(double budget, int window = 8) {
  CacheConfig config;
  config.window = window;
  config.n_local = 8;
  config.budget = {KvBudget::Unit::Ratio, budget};
  return config;
}

PolicySpec ladder_policy(bool per_head = false, bool by_loss = false) {
  return test_policy(Schedule::EveryWindow, false, per_head, true, by_loss);
}

struct Scenario {
  const char* name;
  CacheConfig config;
  int first_prompt = 131;
  bool per_head = false;
  bool by_loss = false;
};

std::vector<Scenario> scenarios() {
  std::vector<Scenario> all = {{"int2", small_config(0.15)},
                               {"int3", small_config(0.3)},
                               {"int4_and_int8", small_config(0.5)},
                               {"window16", small_config(0.4, 16), 200},
                               {"one_token", small_config(0.2), 1},
                               {"inside_local", small_config(0.3), 11},
                               {"strict", small_config(0.4)},
                               {"compressed_late", small_config(1.0), 60},
                               {"all_rungs", small_config(1.0)},
                               {"uncompressed", small_config(1.0)},
                               {"heads", small_config(0.3), 131, true},
                               {"loss", small_config(0.3), 131, false, true},
                               {"loss_little", small_config(0.1), 131, false, true},
                               {"loss_much", small_config(0.6), 131, false, true}};
  all[6].config.strict_budget = true;
  all[7].config.budget = {KvBudget::Unit::Tokens, 190};
  all[8].config.budget = {KvBudget::Unit::Tokens, 120};
  return all;
}

class KvCacheLadder : public testing::TestWithParam<Scenario> {};

TEST_P(KvCacheLadder, HoldsEveryInvariantAfterEachStepOfManyPrompts) {
  const Scenario& s = GetParam();
  Driver driver(small_geometry(s.config.window), 2, s.config, ladder_policy(s.per_head, s.by_loss),
                5);
  const Driver::Round rounds[] = {{s.first_prompt, 70}, {40, 45}, {1, 30}, {90, 25}};
  ASSERT_NO_FATAL_FAILURE(driver.check_rounds(rounds));
  EXPECT_EQ(driver.cache().counters().lowerings, driver.lowerings_seen());
  EXPECT_EQ(driver.cache().counters().promotions, 0);
}

INSTANTIATE_TEST_SUITE_P(Scenarios, KvCacheLadder, testing::ValuesIn(scenarios()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(KvCacheLadder, LowersWindowsWhenTheContextOutgrowsTheirRungs) {
  CacheConfig config = small_config(1.0);
  config.budget = {KvBudget::Unit::Tokens, 120};
  Driver driver(small_geometry(), 2, config, ladder_policy(), 7);
  std::vector<LayerEvent> events;
  driver.cache().set_trace([&](const LayerEvent& e) { events.push_back(e); });
  const auto rungs = [&] {
    std::string bits;
    for (RungId r = 0; r < kMaxRungs; ++r) {
      if (driver.cache().layer(0).quantized(r).size() > 0) bits += std::to_string(kRungs[r].bits);
    }
    return bits;
  };
  // Fits as it is; then with 8 and 4 bits, with 3, with 2.
  const std::pair<int, const char*> rounds[] = {{80, ""}, {140, "84"}, {150, "3"}, {300, "2"}};
  for (const auto& [tokens, expected] : rounds) {
    ASSERT_TRUE(driver.prompt(tokens, 16).has_value());
    for (int i = 0; i < 16; ++i) driver.step();
    ASSERT_NO_FATAL_FAILURE(driver.check());
    EXPECT_EQ(rungs(), expected) << tokens;
  }
  EXPECT_GT(driver.lowerings_seen(), 0);
  std::int64_t lowered = 0;
  for (const LayerEvent& e : events) {
    lowered += static_cast<std::int64_t>(e.lowered.size());
    std::size_t members = 0;
    for (const std::vector<WindowId>& rung : e.rungs) members += rung.size();
    EXPECT_EQ(members, e.quantized.size());
    EXPECT_TRUE(std::ranges::is_sorted(e.quantized));
  }
  EXPECT_EQ(lowered, driver.lowerings_seen());
}

TEST(KvCacheLadder, RollbackRestoresEveryByte) {
  for (const double budget : {0.15, 0.5}) {
    Driver driver(small_geometry(), 3, small_config(budget), ladder_policy(), 5);
    const auto empty = driver.snapshot();
    ASSERT_TRUE(driver.begin_prompt(50, 20).has_value());
    driver.finish_layers(0, 3);
    driver.rollback();
    EXPECT_EQ(driver.snapshot(), empty);
    ASSERT_TRUE(driver.prompt(131, 100).has_value());
    for (int i = 0; i < 43; ++i) driver.step();
    const auto before = driver.snapshot();
    for (const int layers : {0, 1, 3}) {
      ASSERT_TRUE(driver.begin_prompt(70, 400).has_value());
      driver.finish_layers(0, layers);
      driver.rollback();
      EXPECT_EQ(driver.snapshot(), before) << layers;
      ASSERT_NO_FATAL_FAILURE(driver.check());
    }
    ASSERT_TRUE(driver.prompt(70, 400).has_value());
    ASSERT_NO_FATAL_FAILURE(driver.check());
  }
}

TEST(KvCacheLadder, RefusesWindowsWhoseCodesDoNotFillBytes) {
  const Geometry g = small_geometry(4);
  const auto made = KvCache::create(g, 1, RopeSpec::plain(g.pairing, 16, 1e4), small_config(0.2, 4),
                                    ladder_policy());
  ASSERT_FALSE(made.has_value());
  EXPECT_NE(made.error().message.find("multiple of 8"), std::string::npos);
  CacheConfig config = small_config(0.2);
  config.fused_attention = false;
  EXPECT_FALSE(KvCache::create(small_geometry(), 1, RopeSpec::plain(g.pairing, 16, 1e4), config,
                               ladder_policy()));
}

}  // namespace
}  // namespace qevict
