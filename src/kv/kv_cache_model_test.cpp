// The driver of kv_cache_model.h (the name makes it part of the test program).
#include "kv/kv_cache_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace qevict {

Driver::Driver(const Geometry& g, int n_layers, const CacheConfig& config, const PolicySpec& policy,
               unsigned seed)
    : config_(config),
      policy_(policy),
      rope_(RopeSpec::plain(g.pairing, g.head_dim, 10000.0)),
      rng_(seed) {
  auto made = KvCache::create(g, n_layers, rope_, config, policy_);
  if (!made) ADD_FAILURE() << made.error().message;
  cache_ = std::move(*made);
  g_ = cache_->unit_geometry();
  units_.resize(static_cast<std::size_t>(n_layers) * n_units());
  for (ModelUnit& m : units_) {
    m.evicted_heads.reset(g_.n_heads);
    if (ladder()) m.range = UnitRange(rung_geometry(g_, kMaxRungs - 1));
  }
}

// Multiples of 1/64 with many equal values, so that ties occur and sums are exact.
double Driver::random_mass() { return static_cast<double>(rng_() % 24) / 64.0; }

WindowId Driver::window_count(TokenPos n) const {
  return n <= config_.n_sink ? 0 : (n - config_.n_sink + g_.window - 1) / g_.window;
}

void Driver::append_model(int n_new) {
  std::normal_distribution<float> normal;
  for (ModelUnit& layer : units_) {
    for (int t = 0; t < n_new; ++t) {
      Halves k, v;
      for (int i = 0; i < g_.n_kv_heads * g_.head_dim; ++i) {
        k.push_back(fp32_to_fp16(normal(rng_)));
        v.push_back(fp32_to_fp16(normal(rng_)));
      }
      layer.k.push_back(k);
      layer.v.push_back(v);
    }
  }
}

Status Driver::begin_prompt(int n_new, int max_new) {
  const Status status = cache_->begin_prompt(n_new, max_new);
  if (!status) return status;
  saved_ = units_;
  pending_ = n_new;
  append_model(n_new);
  return status;
}

void Driver::finish_layers(int first, int last) {
  for (int i = first; i < last; ++i) finish_layer(i);
}

void Driver::finish_layer(int layer) {
  const TokenPos n = n_ + pending_;
  const int units = n_units();
  ModelUnit* const models = &units_[static_cast<std::size_t>(layer) * units];
  PromptRows rows;
  rows.n_sink_rows = std::min(config_.n_sink, n);
  rows.region_begin = config_.n_sink + models[0].n_ranked * g_.window;
  rows.n_rows = rows.n_sink_rows + std::max(0, n - rows.region_begin);
  rows.capacity = rows.n_rows + 3;
  const int d = g_.head_dim;
  const int heads = g_.n_kv_heads;
  Halves k(static_cast<std::size_t>(units) * heads * rows.capacity * d, 0x7e00), v = k;
  for (int r = 0; r < rows.n_rows; ++r) {
    const TokenPos p = r < rows.n_sink_rows ? r : rows.region_begin + r - rows.n_sink_rows;
    for (int h = 0; h < units * heads; ++h) {
      const ModelUnit& m = models[h / heads];
      const std::size_t to = (static_cast<std::size_t>(h) * rows.capacity + r) * d;
      std::copy_n(&m.k[p][h % heads * d], d, &k[to]);
      std::copy_n(&m.v[p][h % heads * d], d, &v[to]);
    }
  }
  rows.k = k.data();
  rows.v = v.data();
  std::vector<float> extremes;
  if (ladder()) {
    for (int u = 0; u < units; ++u) {
      widen_range(models[u], std::max(n_, config_.n_sink), n, &extremes);
    }
    rows.extremes = extremes.data();
  }
  std::vector<std::vector<double>> sums;
  std::vector<PromptMass> mass;
  sums.reserve(3 * static_cast<std::size_t>(units));
  for (int u = 0; u < units; ++u) {
    ModelUnit& m = models[u];
    const LayerCache& unit = cache_->unit(layer, u);
    const auto draw = [&](std::vector<double>& sum, double& total, std::vector<float>& record) {
      if (ladder()) {
        const std::vector<double> added = add_sums(record, true);
        sum.insert(sum.end(), added.begin(), added.end());
      } else {
        sum.push_back(random_mass());
        total += sum.back();
      }
    };
    const auto draw_slab = [&](std::vector<double>& sum, const TierSlab& slab) {
      for (const WindowId id : slab.ids()) {
        ModelWindow& w = m.windows.at(id);
        draw(sum, w.mass, w.heads);
      }
    };
    std::vector<double>& full = sums.emplace_back();
    draw_slab(full, unit.full());
    std::vector<double>& quantized = sums.emplace_back();
    for (int r = 0; r < unit.n_rungs(); ++r) draw_slab(quantized, unit.quantized(r));
    std::vector<double>& region = sums.emplace_back();
    for (WindowId id = m.n_ranked; id < window_count(n); ++id) {
      draw(region, m.local_mass[id], m.local_heads[id]);
    }
    mass.push_back({full, quantized, region});
  }
  cache_->finish_prompt_layer(layer, rows, mass);
  for (int u = 0; u < units; ++u) route_model(layer * units + u, n);
}

void Driver::commit() {
  cache_->commit_prompt();
  n_ += pending_;
  pending_ = 0;
}

void Driver::rollback() {
  cache_->rollback_prompt();
  pending_ = 0;
  units_ = saved_;
}

Status Driver::prompt(int n_new, int max_new) {
  const Status status = begin_prompt(n_new, max_new);
  if (!status) return status;
  finish_layers(0, cache_->n_layers());
  commit();
  return status;
}

void Driver::step() {
  append_model(1);
  cache_->begin_step();
  ++n_;
  for (int i = 0; i < cache_->n_layers(); ++i) {
    for (int u = 0; u < n_units(); ++u) step_unit(i, u);
  }
  cache_->end_step();
  if (cache_->steps_since_prompt() % g_.window == 0) {
    for (std::size_t i = 0; i < units_.size(); ++i) route_model(static_cast<int>(i), n_);
  }
}

void Driver::step_unit(int layer, int u) {
  LayerCache& unit = cache_->unit(layer, u);
  ModelUnit& m = units_[static_cast<std::size_t>(layer) * n_units() + u];
  for (int h = 0; h < g_.n_kv_heads; ++h) {
    std::vector<float> k, v;
    for (int c = 0; c < g_.head_dim; ++c) {
      k.push_back(fp16_to_fp32(m.k.back()[h * g_.head_dim + c]));
      v.push_back(fp16_to_fp32(m.v.back()[h * g_.head_dim + c]));
    }
    cache_->append(layer, u * g_.n_kv_heads + h, k.data(), v.data());
  }
  if (ladder()) return add_step_heads(unit, m);
  const auto add = [&](std::span<double> into, auto&& model_mass) {
    for (std::size_t s = 0; s < into.size(); ++s) {
      const double mass = random_mass();
      into[s] += mass;
      model_mass(s) += mass;
    }
  };
  add(unit.full_mass(),
      [&](std::size_t s) -> double& { return m.windows.at(unit.full().ids()[s]).mass; });
  add(unit.quantized_mass(),
      [&](std::size_t s) -> double& { return m.windows.at(unit.quantized().ids()[s]).mass; });
  add(unit.local_mass(), [&](std::size_t s) -> double& {
    return m.local_mass[m.n_ranked + static_cast<WindowId>(s)];
  });
}

void Driver::demote(ModelWindow& window, WindowId id) {
  window.tier = Tier::Quantized;
  if (!window.block.empty()) {
    ++reactivations_;
    return;
  }
  window.block.resize(g_.quantized_window_bytes());
  std::vector<float> scratch(quantize_scratch_floats(g_));
  quantize_window(g_, rope_, config_.n_sink + id * g_.window, window.k.data(), window.v.data(),
                  window.block.data(), scratch.data());
}

void Driver::route_model(int unit, TokenPos n) {
  ModelUnit& m = units_[unit];
  const auto evictable = static_cast<WindowId>(evictable_windows(
      n, config_.n_sink, cache_->budget().n_local, g_.window, config_.local_rule));
  const int d = g_.head_dim;
  const TokenPos first_local = config_.n_sink + m.n_ranked * g_.window;
  for (; m.n_ranked < evictable; ++m.n_ranked) {
    ModelWindow w;
    w.mass = m.local_mass[m.n_ranked];
    m.local_mass.erase(m.n_ranked);
    if (ladder()) w.heads = m.local_heads[m.n_ranked];
    m.local_heads.erase(m.n_ranked);
    for (int h = 0; h < g_.n_kv_heads; ++h) {
      for (int j = 0; j < g_.window; ++j) {
        const TokenPos p = config_.n_sink + m.n_ranked * g_.window + j;
        w.k.insert(w.k.end(), &m.k[p][h * d], &m.k[p][h * d] + d);
        w.v.insert(w.v.end(), &m.v[p][h * d], &m.v[p][h * d] + d);
      }
    }
    m.windows[m.n_ranked] = w;
  }
  const bool keep = cache_->budget().uncompressed || policy_.schedule == Schedule::Never;
  if (ladder() && !keep) return route_ladder(m, pending_ > 0 ? -1 : first_local);
  const bool norm = cache_->needs().key_norm;
  std::vector<std::pair<float, WindowId>> order;
  for (const auto& [id, w] : m.windows) {
    float score = static_cast<float>(w.mass);
    if (norm) {
      double sum = 0.0;
      // The original keys: a window's norm is taken when it ages.
      for (int j = 0; j < g_.window; ++j) {
        for (int h = 0; h < g_.n_kv_heads; ++h) {
          double squares = 0.0;
          for (int c = 0; c < d; ++c) {
            const double x = fp16_to_fp32(m.k[config_.n_sink + id * g_.window + j][h * d + c]);
            squares += x * x;
          }
          sum += std::sqrt(squares);
        }
      }
      score = -static_cast<float>(sum / (g_.window * g_.n_kv_heads));
    }
    order.emplace_back(-score, id);
  }
  std::ranges::sort(order);
  const TierQuota quota = cache_->budget().quota;
  std::map<WindowId, Tier> to;
  std::int64_t full = 0, quantized = 0;
  for (const auto& [score, id] : order) {
    const bool may = (config_.promotion && !ladder()) || m.windows[id].tier != Tier::Quantized;
    if (may && (keep || full++ < quota.n_full)) to[id] = Tier::Full;
  }
  for (const auto& [score, id] : order) {
    if (to.contains(id)) continue;
    to[id] = keep || quantized++ < quota.n_quantized ? Tier::Quantized : Tier::Evicted;
  }
  for (const auto& [id, tier] : to) {
    ModelWindow& w = m.windows[id];
    if (tier == Tier::Evicted) {
      m.windows.erase(id);
      m.evicted.insert(id);
    } else if (tier == Tier::Quantized && w.tier != Tier::Quantized) {
      demote(w, id);
    } else if (tier == Tier::Full && w.tier == Tier::Quantized) {
      ++promotions_;
      std::vector<float> scratch(quantize_scratch_floats(g_));
      restore_window(g_, rope_, config_.n_sink + id * g_.window, w.block.data(), w.k.data(),
                     w.v.data(), scratch.data());
      w.tier = Tier::Full;
    } else {
      w.tier = tier;
    }
  }
}

}  // namespace qevict
