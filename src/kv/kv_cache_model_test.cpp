// The driver of kv_cache_model.h (the name makes it part of the test program).
#include "kv/kv_cache_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace qevict {

Driver::Driver(const Geometry& g, int n_layers, const CacheConfig& config, const PolicySpec& policy,
               unsigned seed)
    : g_(g),
      config_(config),
      policy_(policy),
      rope_(RopeSpec::plain(g.pairing, g.head_dim, 10000.0)),
      rng_(seed),
      layers_(static_cast<std::size_t>(n_layers)) {
  auto made = KvCache::create(g, n_layers, rope_, config, policy_);
  if (!made) ADD_FAILURE() << made.error().message;
  cache_ = std::move(*made);
}

// Multiples of 1/64 with many equal values, so that ties occur and sums are exact.
double Driver::random_mass() { return static_cast<double>(rng_() % 24) / 64.0; }

WindowId Driver::window_count(TokenPos n) const {
  return n <= config_.n_sink ? 0 : (n - config_.n_sink + g_.window - 1) / g_.window;
}

void Driver::append_model(int n_new) {
  std::normal_distribution<float> normal;
  for (ModelLayer& layer : layers_) {
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
  saved_ = layers_;
  pending_ = n_new;
  append_model(n_new);
  return status;
}

void Driver::finish_layers(int first, int last) {
  const TokenPos n = n_ + pending_;
  for (int i = first; i < last; ++i) {
    ModelLayer& m = layers_[i];
    PromptRows rows;
    rows.n_sink_rows = std::min(config_.n_sink, n);
    rows.region_begin = config_.n_sink + m.n_ranked * g_.window;
    rows.n_rows = rows.n_sink_rows + std::max(0, n - rows.region_begin);
    rows.capacity = rows.n_rows + 3;
    const int d = g_.head_dim;
    Halves k(static_cast<std::size_t>(g_.n_kv_heads) * rows.capacity * d, 0x7e00), v = k;
    for (int r = 0; r < rows.n_rows; ++r) {
      const TokenPos p = r < rows.n_sink_rows ? r : rows.region_begin + r - rows.n_sink_rows;
      for (int h = 0; h < g_.n_kv_heads; ++h) {
        std::copy_n(&m.k[p][h * d], d, &k[(static_cast<std::size_t>(h) * rows.capacity + r) * d]);
        std::copy_n(&m.v[p][h * d], d, &v[(static_cast<std::size_t>(h) * rows.capacity + r) * d]);
      }
    }
    rows.k = k.data();
    rows.v = v.data();
    std::vector<double> full, quantized, region;
    const LayerCache& layer = cache_->layer(i);
    for (const WindowId id : layer.full().ids()) {
      full.push_back(random_mass());
      m.windows.at(id).mass += full.back();
    }
    for (const WindowId id : layer.quantized().ids()) {
      quantized.push_back(random_mass());
      m.windows.at(id).mass += quantized.back();
    }
    for (WindowId id = m.n_ranked; id < window_count(n); ++id) {
      region.push_back(random_mass());
      m.local_mass[id] += region.back();
    }
    cache_->finish_prompt_layer(i, rows, {full, quantized, region});
    route_model(i, n);
  }
}

void Driver::commit() {
  cache_->commit_prompt();
  n_ += pending_;
}

void Driver::rollback() {
  cache_->rollback_prompt();
  layers_ = saved_;
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
    LayerCache& layer = cache_->layer(i);
    ModelLayer& m = layers_[i];
    for (int h = 0; h < g_.n_kv_heads; ++h) {
      std::vector<float> k, v;
      for (int c = 0; c < g_.head_dim; ++c) {
        k.push_back(fp16_to_fp32(m.k.back()[h * g_.head_dim + c]));
        v.push_back(fp16_to_fp32(m.v.back()[h * g_.head_dim + c]));
      }
      cache_->append(i, h, k.data(), v.data());
    }
    const auto add = [&](std::span<double> into, auto&& model_mass) {
      for (std::size_t s = 0; s < into.size(); ++s) {
        const double mass = random_mass();
        into[s] += mass;
        model_mass(s) += mass;
      }
    };
    add(layer.full_mass(),
        [&](std::size_t s) -> double& { return m.windows.at(layer.full().ids()[s]).mass; });
    add(layer.quantized_mass(),
        [&](std::size_t s) -> double& { return m.windows.at(layer.quantized().ids()[s]).mass; });
    add(layer.local_mass(), [&](std::size_t s) -> double& {
      return m.local_mass[m.n_ranked + static_cast<WindowId>(s)];
    });
  }
  cache_->end_step();
  if (cache_->steps_since_prompt() % g_.window == 0) {
    for (int i = 0; i < cache_->n_layers(); ++i) route_model(i, n_);
  }
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

void Driver::route_model(int layer, TokenPos n) {
  ModelLayer& m = layers_[layer];
  const auto evictable = static_cast<WindowId>(evictable_windows(
      n, config_.n_sink, cache_->budget().n_local, g_.window, config_.local_rule));
  std::set<WindowId> aged;
  const int d = g_.head_dim;
  for (; m.n_ranked < evictable; ++m.n_ranked) {
    ModelWindow w;
    w.mass = m.local_mass[m.n_ranked];
    m.local_mass.erase(m.n_ranked);
    for (int h = 0; h < g_.n_kv_heads; ++h) {
      for (int j = 0; j < g_.window; ++j) {
        const TokenPos p = config_.n_sink + m.n_ranked * g_.window + j;
        w.k.insert(w.k.end(), &m.k[p][h * d], &m.k[p][h * d] + d);
        w.v.insert(w.v.end(), &m.v[p][h * d], &m.v[p][h * d] + d);
      }
    }
    m.windows[m.n_ranked] = w;
    aged.insert(m.n_ranked);
  }
  const bool keep = cache_->budget().uncompressed || policy_.schedule == Schedule::Never;
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
    const bool may = config_.promotion || m.windows[id].tier != Tier::Quantized;
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
