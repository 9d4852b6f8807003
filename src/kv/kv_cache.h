// The compressed KV cache of one sequence: all layers, budget, routing.
//
// A layer is one unit (LayerCache) that routes windows of all KV heads together, or, with policies
// that route by head, one unit for each KV head. A unit looks like this:
//
//   [ sinks S ][ history: windows of Omega tokens ][ local L + remainder + waiting ]
//     fp16        Full fp16 | Quantized INT2 | Evicted      fp16
//
// Invariants (property-tested):
//   * every ranked window is in exactly one tier; an evicted window never returns
//   * bytes held = the formula for the windows held; <= budget + (remainder + Omega) tokens
//   * sinks and local tokens stay fp16; a window's codes are written once
//   * positions are never renumbered
//   * LayerCache::apply() is the only function that moves a window
//
// One prompt:  begin_prompt -> for each layer: attention over its rows, finish_prompt_layer
//              -> commit_prompt   (or rollback_prompt: the cache is as before begin_prompt)
// One step:    begin_step -> each layer: append, attend, add mass -> end_step (routes every Omega
// steps)
//
// Thread safety: one writer. During a step, attention threads may call append() for distinct
// (layer, head) pairs and read the layer views; mass is added by one thread a layer.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/rope.h"
#include "kv/budget.h"
#include "kv/codec_layers.h"
#include "kv/ledger.h"
#include "kv/policy.h"
#include "kv/recent_store.h"
#include "kv/router.h"
#include "kv/tier_slab.h"
#include "kv/unit_range.h"

namespace qevict {

// What one routing event did to one unit; the lines of --trace (cli.md). Window lists ascend.
struct LayerEvent {
  int event = 0, step = 0, layer = 0;  // step counts decode steps since the prompt
  int head = -1;                       // KV head of the unit; -1: the unit is a whole layer
  TokenPos n_tokens = 0;
  std::vector<WindowId> full, quantized;  // the tiers' members after the event
  std::vector<WindowId> evicted;          // by this event
  std::vector<WindowId> promoted;         // Quantized -> Full
  std::vector<WindowId> demoted;          // Full -> Quantized, first or again
  std::vector<WindowId> first_demoted;    // quantised by this event, from Full or from local
  std::vector<WindowId> reactivated;      // demoted with the codes of an earlier demotion
  std::vector<WindowId> lowered;          // to a lower rung of the ladder
  // On a ladder: members of each rung after the event. `quantized` are all of them.
  std::array<std::vector<WindowId>, kMaxRungs> rungs;
  std::vector<WindowId> dormant;  // in the ledger after the event
  TierBytes bytes;
  std::size_t dormant_bytes = 0;
  std::vector<std::pair<WindowId, float>> scores;  // candidates' scores before the move; empty when
                                                   // nothing had to be ranked (uncompressed)
};

// Moves of windows, summed over layers. `demotions` are Full -> Quantized; `first_demotions` count
// every window quantised for the first time, those that come straight from the local zone included.
struct CacheCounters {
  std::int64_t events = 0, promotions = 0, demotions = 0, first_demotions = 0, reactivations = 0,
               evictions = 0, lowerings = 0;  // lowerings: to a lower rung
  CacheCounters& operator+=(const CacheCounters& o);
};

// Uncompressed rows of one layer, all KV heads, while a prompt is read: row r < n_sink_rows is
// position r, row n_sink_rows + i is position region_begin + i. region_begin is the first position
// of a window.
struct PromptRows {
  const fp16_t* k = nullptr;  // [H][capacity][D], post-RoPE
  const fp16_t* v = nullptr;  // [H][capacity][D]
  int capacity = 0;
  int n_rows = 0;
  int n_sink_rows = 0;
  TokenPos region_begin = 0;
  // [H]: extremes of the prompt's keys before RoPE and of its values, sinks left out
  // (unit_range.h); null where the grids need none.
  const float* extremes = nullptr;
};

// Mass that the prompt's rows added in one unit (mean over its query heads), by slot and by region
// window. With Needs::head_sums each window has a HeadRecord's sums instead of one mass.
struct PromptMass {
  std::span<const double> full;       // [full().size()]
  std::span<const double> quantized;  // [windows of all rungs, one rung after the other]
  std::span<const double> region;     // [windows of the region, the partial last one included]
};

// What a policy that selects tokens once or quantises them reads of one layer's prompt besides its
// rows; only what its SelectorNeeds (PromptView) or its codec ask for has to be there.
struct PromptQueries {
  const float* q_last = nullptr;  // [n_heads][n_last][D]
  int n_last = 0;
  QueryMoments moments;
  // [n_heads]: column sums, by Full slot of the head's unit and then by region row.
  std::span<const std::span<const double>> mass;
  // [n_heads][n_rows]: norms of the region's values where they are known already.
  std::span<const std::span<const float>> value_norms;
  ProbeRows probes;  // of a row codec
};

// || v_j W_o[q_head] ||_1 of n values v [n][D] of q_head's KV head.
using ValueNorms =
    std::function<Status(int layer, int q_head, const float* v, int n, float* norms)>;

struct RouteScratch;  // buffers of one routing event (kv/route_scratch.h)

// One unit. `geometry` is the unit's: of all heads, or of one KV head and its query heads.
class LayerCache {
 public:
  // ladder: quantised windows stand on kRungs, else they have the geometry's bits and grids.
  // head_sums: windows have head records.
  LayerCache(const Geometry& geometry, const RopeSpec& rope, int n_sink, bool ladder = false,
             bool head_sums = false);

  const RecentStore& recent() const { return recent_; }
  const TierSlab& full() const { return full_; }
  const TierSlab& quantized(int rung = 0) const { return rungs_[rung]; }
  int n_rungs() const { return static_cast<int>(rungs_.size()); }
  bool ladder() const { return range_.used(); }
  int n_quantized() const;  // windows of all rungs
  int n_quantized_groups() const;
  QuantRange range() const { return range_.view(); }
  const Ledger& ledger() const { return ledger_; }
  TokenPos local_begin() const { return local_begin_; }
  // Mass of the windows from local_begin on (the last may be partial): [ceil(local / Omega)].
  std::span<const double> local_mass() const { return local_mass_; }
  std::int64_t n_evicted() const { return n_evicted_; }
  const CacheCounters& counters() const { return counters_; }
  TierBytes bytes() const;
  MetadataBytes metadata() const;

  // Mutable mass for the attention that has just been computed (one thread a layer).
  std::span<double> full_mass() { return full_.mass(); }
  std::span<double> quantized_mass(int rung = 0) { return rungs_[rung].mass(); }
  std::span<double> local_mass() { return local_mass_; }
  // Head records, the same way: of a group, [head_floats][kLanes], and of the local windows.
  float* full_heads(int group) { return full_.group_heads(group); }
  float* quantized_heads(int rung, int group) { return rungs_[rung].group_heads(group); }
  std::span<float> local_heads() { return local_heads_; }  // [windows][head_floats]
  std::span<const float> local_heads() const { return local_heads_; }
  std::size_t head_floats() const { return head_floats_; }
  // All of it times `factor` (ranker decay), before a step's mass is added.
  void decay_mass(double factor);

 private:
  friend class KvCache;

  // Windows first .. first + count - 1, which leave the local zone; their payload is in `rows`, or
  // in the recent store when null.
  struct Aged {
    WindowId first = 0;
    int count = 0;
    const PromptRows* rows = nullptr;
  };

  WindowId ranked_windows() const { return (local_begin_ - n_sink_) / geometry_.window; }
  // Fills scratch.candidates (ascending ids) and scratch.slots. keep_full: windows in Full, which
  // stay there, are left out.
  void list_candidates(const Aged& aged, bool keep_full, bool need_key_norm, RouteScratch& scratch);
  // The only function that moves a window: scratch.candidates[i] goes to scratch.plan.to[i].
  void apply(const Aged& aged, RouteScratch& scratch, LayerEvent* event);
  // Parts of apply(), in the order in which they run.
  void sort_moves(const Aged& aged, RouteScratch& scratch, LayerEvent* event);
  void fill_quantized(int rung, const Aged& aged, RouteScratch& scratch, LayerEvent* event);
  void fill_full(const Aged& aged, RouteScratch& scratch);

  void fix_range(const Aged& aged, RouteScratch& scratch);
  // Of scratch.candidates; fills scratch.heads and scratch.head_inverse.
  HeadView head_view(const Aged& aged, RouteScratch& scratch) const;
  HeadRecord heads_of(const WindowView& window, SlotId slot, const Aged& aged) const;
  void load_aged(const Aged& aged, WindowId window, fp16_t* k, fp16_t* v) const;
  // A prompt counts as one step: what was there decays once.
  void add_prompt_mass(const PromptMass& mass, double decay, int n_region_windows);
  // The prompt's rows that stay fp16: sinks and everything from local_begin() to n_tokens - 1.
  void refill_recent(const PromptRows& rows, TokenPos n_tokens, int max_local,
                     std::int64_t context_tokens);
  void push_row();
  void clear();

  Geometry geometry_;
  const RopeSpec* rope_;
  int n_sink_;
  RecentStore recent_;
  std::size_t head_floats_;  // of a window's head record; 0: none
  TierSlab full_;
  std::vector<TierSlab> rungs_;
  UnitRange range_;
  Ledger ledger_;
  std::vector<double> local_mass_;
  std::vector<float> local_heads_;
  EvictedHeads evicted_heads_;
  TokenPos local_begin_ = 0;  // position of the first local token
  std::int64_t n_evicted_ = 0;
  CacheCounters counters_;
};

class KvCache {
 public:
  using TraceSink = std::function<void(const LayerEvent&)>;

  // `policy` must outlive the cache (policies/registry.h).
  static Result<std::unique_ptr<KvCache>> create(const Geometry& geometry, int n_layers,
                                                 const RopeSpec& rope, const CacheConfig& config,
                                                 const PolicySpec& policy);

  const Geometry& geometry() const { return geometry_; }            // the model's
  const Geometry& unit_geometry() const { return unit_geometry_; }  // its n_kv_heads: a unit's
  const RopeSpec& rope() const { return rope_; }
  const CacheConfig& config() const { return config_; }
  const Needs& needs() const { return needs_; }
  // Of a policy that selects once; otherwise nothing.
  const SelectorNeeds& selector_needs() const { return selector_needs_; }
  // Where a selector that needs value norms gets them; before the first prompt.
  void set_value_norms(ValueNorms norms) { value_norms_ = std::move(norms); }
  const ValueNorms& value_norms() const { return value_norms_; }
  const BudgetPlan& budget() const { return budget_; }
  int n_layers() const { return n_layers_; }
  // Whether a unit is a KV head of a layer; else it is the layer.
  bool per_head() const { return per_head_; }
  bool ladder() const { return policy_->ladder; }
  int units_per_layer() const { return units_per_layer_; }
  TokenPos n_tokens() const { return n_tokens_; }
  // Units of one layer always hold equally many sinks and local tokens, with equal capacity.
  LayerCache& unit(int layer, int u) { return units_[unit_index(layer, u)]; }
  const LayerCache& unit(int layer, int u) const { return units_[unit_index(layer, u)]; }
  // The only unit of a layer.
  LayerCache& layer(int i) { return units_[whole_layer(i)]; }
  const LayerCache& layer(int i) const { return units_[whole_layer(i)]; }
  // The layer's store of a policy that quantises all tokens (row_codec.h); null for the others,
  // whose tokens are in the units.
  RowCodec* codec(int i) const { return codecs_.layer(i); }
  // Angles of window bases, of all positions where there are codecs; grows at begin_prompt to cover
  // context_tokens.
  const WindowPhases& phases() const { return phases_; }

  // Starts a prompt of n_new tokens after which max_new_tokens may be generated; solves the budget.
  // Refuses an empty prompt, a context that positions cannot count and a budget that is too small;
  // then nothing has changed. The steps since the prompt count from 0 again.
  //
  // A policy that selects once keeps tokens of a layer as soon as the layer's prompt is finished
  // or, if it splits the budget over all layers by their scores, in commit_prompt(): until then
  // all of them are held, and peak_bytes() shows it.
  Status begin_prompt(int n_new, int max_new_tokens);
  // The layer's prompt is attended: adds the mass of each of its units, fills the local zone, runs
  // the layer's event. mass [units_per_layer()]. Errors: what the value norms return; then the
  // prompt can only be rolled back.
  Status finish_prompt_layer(int layer, const PromptRows& rows, std::span<const PromptMass> mass,
                             const PromptQueries& queries = {});
  Status finish_prompt_layer(int layer, const PromptRows& rows, const PromptMass& mass) {
    return finish_prompt_layer(layer, rows, std::span(&mass, 1));
  }
  void commit_prompt();
  void rollback_prompt();

  // Reserves the new token's row in every layer; its position is n_tokens() before the call, which
  // must be below budget().context_tokens.
  void begin_step();
  // k post-RoPE, v: [D] fp32 of one KV head of the reserved row.
  void append(int layer, int kv_head, const float* k, const float* v);
  // Counts the step and routes all layers when Omega steps have passed.
  void end_step();
  int steps_since_prompt() const { return step_; }

  void set_trace(TraceSink sink) { trace_ = std::move(sink); }

  // Sums over units. peak: the largest total() seen since creation, after a layer's compression.
  TierBytes bytes() const;
  MetadataBytes metadata() const;
  std::size_t reserved_bytes() const;  // allocated local rows not in use
  // Copies kept while an appended prompt may be rolled back, and the view that a selector reads.
  std::size_t backup_bytes() const;
  std::size_t peak_bytes() const { return peak_bytes_; }
  // Sums over units, except `events`: the routing events of the sequence.
  CacheCounters counters() const;
  double routing_seconds() const { return routing_seconds_; }

 private:
  KvCache() = default;
  std::size_t unit_index(int layer, int u) const {
    return static_cast<std::size_t>(layer) * units_per_layer_ + u;
  }
  std::size_t whole_layer(int layer) const {
    QE_CHECK(units_per_layer_ == 1);
    return static_cast<std::size_t>(layer);
  }
  PromptRows rows_of_unit(const PromptRows& rows, int u) const;
  // Keeps what a rollback puts back, adds the mass; then the unit is routed and refilled.
  void begin_prompt_unit(int layer, int u, const PromptRows& rows, const PromptMass& mass);
  void route_prompt_unit(int layer, int u, const PromptRows& rows);
  void refill_prompt_unit(int layer, int u, const PromptRows& rows);
  void finish_codec_layer(int layer, const CodecRows& rows, const ProbeRows& probes);
  // Selection (prompt_select.cpp).
  bool selects() const { return selector_ != nullptr; }
  // Whether what all units hold and n_new tokens fit into the budget (or nothing is compressed).
  bool fits_unselected(int n_new) const;
  Status select_prompt_layer(int layer, const PromptRows& rows, const PromptQueries& queries);
  void select_over_layers();
  // Moves the candidates in scratch_ that are named to Full and evicts the others. kept: null: all.
  void keep_tokens(int layer, int u, const std::vector<int>* kept, const PromptRows* rows,
                   LayerEvent* event);
  // Routes one unit at length n_tokens; `rows`: the prompt's, null in a decode step.
  void route_unit(int layer, int u, TokenPos n_tokens, const PromptRows* rows, LayerEvent* event);
  void finish_event(int layer, int u, TokenPos n_tokens, LayerEvent& event);
  // True when nothing is compressed now: every ranked window goes to Full.
  bool keeps_all() const;
  // Largest local zone until the next event after one at length n_tokens, in tokens.
  int max_local(const LayerCache& layer, TokenPos n_tokens) const;

  Geometry geometry_, unit_geometry_;
  int n_layers_ = 0, units_per_layer_ = 1;
  bool per_head_ = false;
  RopeSpec rope_;
  CacheConfig config_;
  const PolicySpec* policy_ = nullptr;
  std::unique_ptr<Scorer> scorer_;
  std::unique_ptr<Allocator> allocator_;
  std::unique_ptr<Selector> selector_;
  Needs needs_;
  SelectorNeeds selector_needs_;
  ValueNorms value_norms_;
  BudgetPlan budget_;
  WindowPhases phases_;
  CodecLayers codecs_;             // empty for most policies
  std::vector<LayerCache> units_;  // [n_layers][units_per_layer]
  TokenPos n_tokens_ = 0;
  int step_ = 0;
  int event_ = 0;
  TraceSink trace_;
  std::size_t peak_bytes_ = 0;
  double routing_seconds_ = 0.0;
  struct Backup;  // what rollback_prompt() needs; present between begin and commit
  std::shared_ptr<Backup> backup_;
  std::shared_ptr<RouteScratch> scratch_;
};

}  // namespace qevict
