// Driver::check() and snapshot() (the name makes it part of the test program).
#include <algorithm>
#include <type_traits>

#include "kv/kv_cache_model.h"

namespace qevict {

void Driver::check_rounds(std::span<const Round> rounds) {
  for (const Round& round : rounds) {
    const Status status = prompt(round.tokens, round.steps);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    ASSERT_NO_FATAL_FAILURE(check());
    for (int i = 0; i < round.steps; ++i) {
      step();
      ASSERT_NO_FATAL_FAILURE(check()) << "step " << i;
    }
  }
}

void Driver::check() const {
  ASSERT_EQ(cache_->n_tokens(), n_);
  std::size_t total = 0;
  for (int i = 0; i < static_cast<int>(units_.size()); ++i) {
    SCOPED_TRACE(testing::Message() << "unit " << i << " at " << n_ << " tokens");
    const LayerCache& unit = cache_->unit(i / n_units(), i % n_units());
    ASSERT_NO_FATAL_FAILURE(check_layer(unit, units_[i]));
    ASSERT_NO_FATAL_FAILURE(check_recent(unit, units_[i]));
    check_bytes(unit);
    total += unit.bytes().total();
  }
  EXPECT_EQ(cache_->bytes().total(), total);
  EXPECT_GE(cache_->peak_bytes(), total);
  EXPECT_EQ(cache_->backup_bytes(), 0U);
}

void Driver::check_layer(const LayerCache& layer, const ModelUnit& model) const {
  std::set<WindowId> seen;
  std::set<WindowId> dormant = model.dormant();
  Halves k(static_cast<std::size_t>(g_.n_kv_heads) * g_.window * g_.head_dim), v(k.size());
  for (SlotId s = 0; s < layer.full().size(); ++s) {
    const WindowId id = layer.full().ids()[s];
    ASSERT_TRUE(seen.insert(id).second);
    ASSERT_TRUE(model.windows.contains(id)) << id;
    const ModelWindow& w = model.windows.at(id);
    ASSERT_EQ(w.tier, Tier::Full) << id;
    ASSERT_EQ(layer.full().mass()[s], w.mass);
    layer.full().load_full(s, k.data(), v.data());
    ASSERT_EQ(k, w.k);
    ASSERT_EQ(v, w.v);
  }
  for (int r = 0; r < layer.n_rungs(); ++r) {
    const TierSlab& slab = layer.quantized(r);
    std::vector<std::uint8_t> block(slab.window_bytes());
    for (SlotId s = 0; s < slab.size(); ++s) {
      const WindowId id = slab.ids()[s];
      ASSERT_TRUE(seen.insert(id).second) << "in two tiers";
      ASSERT_TRUE(model.windows.contains(id)) << id;
      const ModelWindow& w = model.windows.at(id);
      ASSERT_EQ(w.tier, Tier::Quantized) << id;
      ASSERT_EQ(slab.mass()[s], w.mass);
      slab.load_block(s, block.data());
      ASSERT_EQ(block, w.block) << "codes are written once";
    }
  }
  if (ladder()) return check_rungs(layer, model);
  ASSERT_EQ(seen.size(), model.windows.size());
  for (const WindowId id : model.evicted) ASSERT_FALSE(seen.contains(id)) << "returned";
  ASSERT_EQ(layer.n_evicted(), static_cast<std::int64_t>(model.evicted.size()));
  const std::vector<WindowId> ledger = layer.ledger().windows();
  ASSERT_EQ(std::set<WindowId>(ledger.begin(), ledger.end()), dormant);
  for (const WindowId id : ledger) {
    ASSERT_EQ(layer.ledger().block(id), model.windows.at(id).block);
  }
  if (!cache_->budget().uncompressed && policy_.schedule != Schedule::Never) {
    ASSERT_LE(layer.full().size(), cache_->budget().quota.n_full);
    ASSERT_LE(layer.quantized().size(), cache_->budget().quota.n_quantized);
  }
}

void Driver::check_recent(const LayerCache& layer, const ModelUnit& model) const {
  const RecentStore& recent = layer.recent();
  ASSERT_EQ(layer.local_begin(), config_.n_sink + model.n_ranked * g_.window);
  ASSERT_EQ(recent.n_sinks(), std::min(config_.n_sink, n_));
  ASSERT_EQ(recent.n_local_tokens(), std::max(0, n_ - layer.local_begin()));
  ASSERT_GE(recent.n_local_tokens(),
            config_.local_rule == LocalRule::Floor
                ? std::min(cache_->budget().n_local, std::max(0, n_ - config_.n_sink))
                : 0);
  Halves k(static_cast<std::size_t>(g_.head_dim)), v(k.size());
  for (int row = 0; row < recent.n_tokens(); ++row) {
    const TokenPos p = row < recent.n_sinks() ? row : layer.local_begin() + row - recent.n_sinks();
    for (int h = 0; h < g_.n_kv_heads; ++h) {
      recent.read(row, h, k.data(), v.data());
      ASSERT_TRUE(std::equal(k.begin(), k.end(), &model.k[p][h * g_.head_dim])) << p;
      ASSERT_TRUE(std::equal(v.begin(), v.end(), &model.v[p][h * g_.head_dim])) << p;
    }
  }
  ASSERT_EQ(layer.local_mass().size(), static_cast<std::size_t>(window_count(n_) - model.n_ranked));
  for (std::size_t i = 0; i < layer.local_mass().size(); ++i) {
    const auto it = model.local_mass.find(model.n_ranked + static_cast<WindowId>(i));
    ASSERT_EQ(layer.local_mass()[i], it == model.local_mass.end() ? 0.0 : it->second);
  }
}

void Driver::check_bytes(const LayerCache& layer) const {
  const TierBytes bytes = layer.bytes();
  const std::size_t token = g_.token_bytes();
  EXPECT_EQ(bytes.sink, token * layer.recent().n_sinks());
  EXPECT_EQ(bytes.local, token * layer.recent().n_local_tokens());
  EXPECT_EQ(bytes.full, g_.full_window_bytes() * layer.full().size());
  std::size_t quantized = 0;
  for (int r = 0; r < layer.n_rungs(); ++r) {
    const TierSlab& slab = layer.quantized(r);
    quantized += slab.geometry().quantized_window_bytes() * slab.size();
  }
  if (layer.range().keys != nullptr) quantized += rung_geometry(g_, 3).range_bytes();
  EXPECT_EQ(bytes.quantized, quantized);
  const MetadataBytes metadata = layer.metadata();
  EXPECT_EQ(metadata.dormant, g_.quantized_window_bytes() * layer.ledger().size());
  EXPECT_EQ(metadata.positions, sizeof(WindowId) * (layer.full().size() + layer.n_quantized()));
  if (policy_.schedule == Schedule::Never) return;
  const BudgetPlan& plan = cache_->budget();
  const auto remainder =
      local_remainder(n_, config_.n_sink, plan.n_local, g_.window, config_.local_rule);
  // Steps since the event are part of n_, so the remainder at the event is at most this.
  const auto waiting = std::max<std::int64_t>(remainder, g_.window - 1) + g_.window;
  const auto allowed =
      config_.strict_budget || plan.uncompressed ? 0 : waiting * std::int64_t(token);
  EXPECT_LE(static_cast<std::int64_t>(bytes.total()), plan.layer_bytes / n_units() + allowed);
}

std::vector<std::uint8_t> Driver::snapshot() const {
  std::vector<std::uint8_t> out;
  const auto put = [&](const auto& value) {
    static_assert(std::is_trivially_copyable_v<std::remove_reference_t<decltype(value)>>);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
    out.insert(out.end(), bytes, bytes + sizeof(value));
  };
  const auto put_all = [&](const auto& values) {
    put(values.size());
    for (const auto& value : values) put(value);
  };
  put(cache_->n_tokens());
  put(cache_->steps_since_prompt());
  const BudgetPlan& plan = cache_->budget();
  for (const std::int64_t x :
       {plan.context_tokens, plan.total_tokens, plan.quota.n_full, plan.quota.n_quantized,
        plan.budget_bytes, std::int64_t{plan.n_local}, std::int64_t{plan.uncompressed},
        std::int64_t{plan.raised}}) {
    put(x);
  }
  for (int i = 0; i < static_cast<int>(units_.size()); ++i) {
    const LayerCache& layer = cache_->unit(i / n_units(), i % n_units());
    std::vector<const TierSlab*> slabs = {&layer.full()};
    for (int r = 0; r < layer.n_rungs(); ++r) slabs.push_back(&layer.quantized(r));
    for (const TierSlab* slab : slabs) {
      put_all(slab->ids());
      put_all(slab->mass());
      put_all(slab->key_norm());
      for (const GroupRef& group : slab->groups()) {
        put_all(std::span(group.data, group.lanes * slab->window_bytes()));
      }
      for (SlotId s = 0; s < slab->size(); ++s) {
        for (std::size_t k = 0; k < layer.head_floats(); ++k) {
          put(slab->heads(s)[static_cast<int>(k)]);
        }
      }
    }
    put(layer.range().keys != nullptr);
    for (const WindowId id : layer.ledger().windows()) {
      put(id);
      put_all(layer.ledger().block(id));
    }
    Halves k(static_cast<std::size_t>(g_.head_dim)), v(k.size());
    for (int row = 0; row < layer.recent().n_tokens(); ++row) {
      for (int h = 0; h < g_.n_kv_heads; ++h) {
        layer.recent().read(row, h, k.data(), v.data());
        put_all(k);
        put_all(v);
      }
    }
    put(layer.recent().n_sinks());
    put_all(layer.local_mass());
    put_all(layer.local_heads());
    put(layer.local_begin());
    put(layer.n_evicted());
    put(layer.bytes());
    put(layer.metadata());
    put(layer.counters());
  }
  put(cache_->counters());
  return out;
}

}  // namespace qevict
