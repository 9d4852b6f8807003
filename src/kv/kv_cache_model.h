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

// ladder: with head records; by_loss: its windows share bytes instead of slots.
inline PolicySpec test_policy(Schedule schedule, bool key_norm, bool per_head = false,
                              bool ladder = false, bool by_loss = false) {
  struct TestScorer final : Scorer {
    bool norm, heads;
    TestScorer(bool n, bool h) : norm(n), heads(h) {}
    Needs needs() const override {
      return {.mass = !norm && !heads, .key_norm = norm, .head_sums = heads};
    }
    void score(const LayerView& view, std::span<float> scores) const override {
      if (heads) return score_head_shares(view.heads, scores);
      for (std::size_t i = 0; i < scores.size(); ++i) {
        scores[i] = norm ? -view.windows[i].key_norm : view.windows[i].mass;
      }
    }
  };
  struct TestAllocator final : Allocator {
    bool by_loss;
    explicit TestAllocator(bool l) : by_loss(l) {}
    TierQuota quota(const BudgetPlan& plan, int, int) const override { return plan.quota; }
    LadderQuota ladder(const BudgetPlan& plan, int, int) const override {
      if (by_loss) return ladder_bytes(plan.geometry, plan.history_bytes);
      return ladder_quota(
          plan.geometry, plan.history_bytes,
          ladder_windows(plan.context_tokens, plan.n_sink, plan.n_local, plan.geometry.window));
    }
  };
  PolicySpec policy;
  policy.name = "test";
  policy.schedule = schedule;
  policy.per_head = per_head;
  policy.ladder = ladder;
  policy.make_scorer = [=](const CacheConfig&) {
    return std::make_unique<TestScorer>(key_norm, ladder);
  };
  policy.make_allocator = [=](const CacheConfig&) {
    return std::make_unique<TestAllocator>(by_loss);
  };
  return policy;
}

using Halves = std::vector<fp16_t>;

struct ModelWindow {
  Tier tier = Tier::Local;
  double mass = 0.0;
  Halves k, v;                      // payload now in fp16, or the last one it had: [H][Omega][D]
  std::vector<std::uint8_t> block;  // empty until the first demotion; never changes on a rung
  RungId rung = kUnquantised;       // on a ladder
  std::vector<float> heads;         // the head record
};

// A unit of a layer.
struct ModelUnit {
  std::map<WindowId, ModelWindow> windows;  // ranked windows in Full or Quantized
  std::set<WindowId> evicted;
  WindowId n_ranked = 0;
  std::map<WindowId, double> local_mass;
  std::map<WindowId, std::vector<float>> local_heads;
  EvictedHeads evicted_heads;
  UnitRange range;
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
  // Prompts, each followed by steps; check() after every one of both.
  struct Round {
    int tokens, steps;
  };
  void check_rounds(std::span<const Round> rounds);
  std::int64_t promotions_seen() const { return promotions_; }
  std::int64_t reactivations_seen() const { return reactivations_; }
  std::int64_t lowerings_seen() const { return lowerings_; }

 private:
  void append_model(int n_new);
  void finish_layer(int layer);
  void step_unit(int layer, int u);
  void route_model(int unit, TokenPos n);
  void demote(ModelWindow& window, WindowId id);
  // On a ladder (kv_cache_ladder_test.cpp).
  void route_ladder(ModelUnit& m, TokenPos first_local);
  void move_to_rung(ModelUnit& m, WindowId id, RungId rung);
  void widen_range(ModelUnit& m, TokenPos begin, TokenPos end, std::vector<float>* extremes) const;
  // Random sums, added to a record; of a prompt, or of a step.
  std::vector<double> add_sums(std::vector<float>& record, bool prompt);
  void add_step_heads(LayerCache& unit, ModelUnit& m);
  void check_rungs(const LayerCache& layer, const ModelUnit& model) const;
  double random_mass();
  void check_layer(const LayerCache& layer, const ModelUnit& model) const;
  void check_recent(const LayerCache& layer, const ModelUnit& model) const;
  void check_bytes(const LayerCache& layer) const;
  WindowId window_count(TokenPos n) const;

  bool ladder() const { return policy_.ladder; }
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
  std::int64_t promotions_ = 0, reactivations_ = 0, lowerings_ = 0;
};

}  // namespace qevict
