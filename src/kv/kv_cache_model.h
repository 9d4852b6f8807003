// For tests: a naive model of KvCache and a driver that feeds both the same tokens and mass.
//
// The model keeps sets and copies of payloads, sorts all candidates at every event, and quantises
// from the payload it remembers. Driver::check() compares everything that the cache exposes with
// it.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "kernels/codec.h"
#include "kv/kv_cache.h"

namespace qevict {

inline PolicySpec test_policy(Schedule schedule, bool key_norm, bool per_head = false) {
  struct TestScorer final : Scorer {
    bool norm;
    explicit TestScorer(bool n) : norm(n) {}
    Needs needs() const override { return {.mass = !norm, .key_norm = norm}; }
    void score(const LayerView& view, std::span<float> scores) const override {
      for (std::size_t i = 0; i < scores.size(); ++i) {
        scores[i] = norm ? -view.windows[i].key_norm : view.windows[i].mass;
      }
    }
  };
  struct TestAllocator final : Allocator {
    TierQuota quota(const BudgetPlan& plan, int, int) const override { return plan.quota; }
  };
  PolicySpec policy;
  policy.name = "test";
  policy.schedule = schedule;
  policy.per_head = per_head;
  policy.make_scorer = [key_norm](const CacheConfig&) {
    return std::make_unique<TestScorer>(key_norm);
  };
  policy.make_allocator = [](const CacheConfig&) { return std::make_unique<TestAllocator>(); };
  return policy;
}

using Halves = std::vector<fp16_t>;

struct ModelWindow {
  Tier tier = Tier::Local;
  double mass = 0.0;
  Halves k, v;                      // payload now in fp16, or the last one it had: [H][Omega][D]
  std::vector<std::uint8_t> block;  // empty until the first demotion; never changes afterwards
};

// A unit of a layer.
struct ModelUnit {
  std::map<WindowId, ModelWindow> windows;  // ranked windows in Full or Quantized
  std::set<WindowId> evicted;
  WindowId n_ranked = 0;
  std::map<WindowId, double> local_mass;
  std::vector<Halves> k, v;  // every token ever appended, [H * D] of the unit's heads
  std::set<WindowId> dormant() const {
    std::set<WindowId> ids;
    for (const auto& [id, w] : windows) {
      if (w.tier == Tier::Full && !w.block.empty()) ids.insert(id);
    }
    return ids;
  }
};

// Runs a cache and the model side by side.
class Driver {
 public:
  Driver(const Geometry& g, int n_layers, const CacheConfig& config, const PolicySpec& policy,
         unsigned seed);

  KvCache& cache() { return *cache_; }
  Status begin_prompt(int n_new, int max_new);
  void finish_layers(int first, int last);  // [first, last)
  void commit();
  void rollback();
  Status prompt(int n_new, int max_new);  // all of it
  void step();
  // Every invariant of kv_cache.h, and equality with the model.
  void check() const;
  // Everything that a rollback must restore, as bytes.
  std::vector<std::uint8_t> snapshot() const;
  std::int64_t promotions_seen() const { return promotions_; }
  std::int64_t reactivations_seen() const { return reactivations_; }

 private:
  void append_model(int n_new);
  void finish_layer(int layer);
  void step_unit(int layer, int u);
  void route_model(int unit, TokenPos n);
  void demote(ModelWindow& window, WindowId id);
  double random_mass();
  void check_layer(const LayerCache& layer, const ModelUnit& model) const;
  void check_recent(const LayerCache& layer, const ModelUnit& model) const;
  void check_bytes(const LayerCache& layer) const;
  WindowId window_count(TokenPos n) const;

  int n_units() const { return cache_->units_per_layer(); }

  Geometry g_;  // a unit's
  CacheConfig config_;
  PolicySpec policy_;
  RopeSpec rope_;
  std::mt19937 rng_;
  std::unique_ptr<KvCache> cache_;
  std::vector<ModelUnit> units_, saved_;  // [n_layers][n_units()]
  TokenPos n_ = 0;
  int pending_ = 0;
  std::int64_t promotions_ = 0, reactivations_ = 0;
};

}  // namespace qevict
