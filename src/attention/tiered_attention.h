// Attention of one sequence over its KvCache: prompts layer by layer, then token by token.
//
// Prompt:  begin_prompt(n) -> per layer: begin_layer, per block: set_block, (model: prepare,
// attend)
//          -> finish_layer -> ... -> end_prompt. Only one layer's rows are ever uncompressed.
// Decode:  begin_step -> (model: prepare, attend for each layer) -> KvCache::end_step.
//
// Work is cut into items that do not depend on the number of threads; threads claim items, each
// item leaves a partial softmax state, and whoever finishes last merges them in item order. So
// results have the same bits for any number of threads. Thread safety: prepare() and attend() are
// called by all threads of one pool; the rest by the owner.
//
// In a per-head cache each KV head is a unit with its own tiers (kv_cache.h); kernels then run with
// the unit's geometry on the head's queries.
//
// With CacheConfig::fused_attention off the same calls compute attention in separate passes over a
// dense copy (materialised_attention.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention/aligned_buffer.h"
#include "attention/attention.h"
#include "attention/codec_attention.h"
#include "attention/mass_observer.h"
#include "attention/materialised_attention.h"
#include "kernels/kernels.h"
#include "kv/kv_cache.h"

namespace qevict {

class TieredAttention final : public Attention {
 public:
  TieredAttention(KvCache& cache, const KernelTable& kernels, int n_threads);

  // n_new tokens follow those in the cache; blocks of at most max_block tokens.
  void begin_prompt(int n_new, int max_block);
  void begin_layer(int layer);
  // The next block: tokens first .. first + n - 1 of the prompt.
  void set_block(int first, int n);
  // What the prompt left of the layer, until the next begin_layer().
  struct PromptLayer {
    PromptRows rows;
    std::vector<PromptMass> mass;  // [units]
    PromptQueries queries;
  };
  const PromptLayer& prompt_layer();
  // Hands it to the cache: the layer's routing event.
  Status finish_layer(int layer);
  // Frees the workspace.
  void end_prompt();

  // Before KvCache::begin_step()'s token is computed.
  void begin_step();

  void prepare(int layer, const QkvBlock& qkv, int ith, int nth) noexcept override;
  void attend(int layer, float* out, int ith, int nth) noexcept override;

  const Geometry& geometry() const { return geometry_; }
  // First layer whose K or V left fp16's finite range since the last call, or -1.
  int take_nonfinite_layer() { return nonfinite_layer_.exchange(-1); }
  // Between prompts and steps only; null: none. Not with materialised attention or row codecs.
  void set_observer(MassObserver* observer);
  // Seconds that the first thread spent in prepare and attend since the last call.
  double take_seconds();
  // Bytes of the uncompressed layer and scratch now held, and the most that were.
  std::size_t workspace_bytes() const;
  std::size_t workspace_peak_bytes() const { return workspace_peak_; }

 private:
  void prepare_prompt(int layer, const QkvBlock& qkv, int ith, int nth) noexcept;
  void prepare_step(int layer, const QkvBlock& qkv, int ith, int nth) noexcept;
  void attend_prompt(int layer, float* out, int ith) noexcept;
  void attend_step(int layer, float* out, int ith) noexcept;
  void fill_prefix_phases(int layer, int u);
  void begin_queries(int layer);
  void keep_queries(const QkvBlock& qkv, int ith, int nth) noexcept;
  void finish_queries();
  // Index in the block of the first query whose mass counts.
  int first_mass_query() const;
  void list_prefix(int layer, int u);
  // Queries of the block that a part of an item covers, [first, second): 0 those before the cut, 1
  // those from it on. What is cut off is counted apart (want_heads_) or not at all (mass_rows_).
  std::pair<int, int> item_queries(int item, int part) const;
  float* item_sums(int item, int part) const;
  void add_item_mass(int layer, int item, int part) noexcept;
  float* extremes_of(int ith, int kv_head) {
    return extremes_.data() + (static_cast<std::size_t>(ith) * geometry_.n_kv_heads + kv_head) *
                                  head_extreme_floats(geometry_);
  }
  MaterialisedAttention::PromptBlock prompt_block() const;
  void run_prompt_item(int layer, int item, float* out, int ith) noexcept;
  // The unit that holds a KV head.
  int unit_of(int kv_head) const { return kv_head / unit_geometry_.n_kv_heads; }
  void sum_prompt_mass(int layer) noexcept;
  void run_step_item(int layer, int item, int ith) noexcept;
  void finish_step(int layer, float* out) noexcept;
  void note_peak();
  // Items of one decode step in one unit: quantized chunks, then full chunks, then recent.
  struct StepItems {
    int quantized = 0, full = 0, total = 0;
  };
  StepItems step_items(const LayerCache& unit) const;
  // A unit of the layer in a decode step, and what comes before it in the shared buffers.
  struct StepUnit {
    int index = 0;
    int first_item = 0;
    std::size_t first_group = 0;
    StepItems items;
  };
  StepUnit first_unit(int layer) const;
  void next_unit(int layer, StepUnit& unit) const;
  int layer_items(int layer) const;
  // What an item works on: some groups of one slab, or nothing (the recent tokens).
  struct StepGroups {
    const TierSlab* slab = nullptr;
    bool quantized = false;
    int first = 0, n = 0;   // groups of the slab
    int first_in_unit = 0;  // of the slab's groups, among the unit's
  };
  StepGroups step_groups(const LayerCache& unit, int item) const;
  void add_step_heads(int layer, const StepUnit& unit, const SoftmaxState& total) noexcept;
  // Calls add(head of the unit, local window, mass * scale) for each head's local tokens in turn.
  template <typename Add>
  void each_local_mass(const LayerCache& cache, const StepUnit& unit, const SoftmaxState& total,
                       float scale, Add add) const noexcept;
  void add_step_mass(int layer, const StepUnit& unit, const SoftmaxState& total) noexcept;
  // Probability that a sum relative to exp(max) stands for, given the head's whole softmax; heads
  // count within the unit.
  float mass_factor(float max, const SoftmaxState& total, int head) const noexcept;
  void reserve_observed(std::size_t groups, int capacity);
  void observe_prompt(int layer, int kv_head, int group_head, const float* mass,
                      int n_region) noexcept;
  void observe_step(int layer, const StepUnit& unit, const SoftmaxState& total) noexcept;
  bool uses_quantized(const LayerCache& layer) const;

  KvCache& cache_;
  const KernelTable& kernels_;
  const Geometry geometry_, unit_geometry_;
  int n_threads_;
  float scale_;
  bool want_mass_;   // of windows, in prompts and steps
  bool want_heads_;  // sums of single query heads, in place of the mass
  float power_, decay_;
  int mass_rows_;  // a prompt's last rows that add mass; 0: all
  const SelectorNeeds select_needs_;
  std::vector<float> back_cos_, back_sin_;  // [Omega][D/2]: angles of 0 .. Omega-1

  // Shared by both modes: claimed and finished items, one pair a layer.
  struct alignas(64) Progress {
    std::atomic<int> claimed{0}, finished{0};
  };
  std::unique_ptr<Progress[]> progress_;
  std::unique_ptr<MaterialisedAttention> materialised_;  // null: fused
  std::unique_ptr<CodecAttention> codec_;                // of a cache of row codecs
  std::atomic<int> nonfinite_layer_{-1};
  double seconds_ = 0.0;
  MassObserver* observer_ = nullptr;
  AlignedBuffer<float> observed_;  // one head's mass: [windows of a tier, or recent tokens]

  AlignedBuffer<float> q_;  // post-RoPE queries: [block][n_heads][D]
  AlignedBuffer<std::uint8_t> thread_scratch_;
  std::size_t scratch_stride_ = 0;  // bytes a thread

  // Prompt mode.
  bool in_prompt_ = false;
  int n_new_ = 0, n_prefix_rows_ = 0, n_rows_capacity_ = 0, max_block_ = 0;
  int block_first_ = 0, block_tokens_ = 0;
  TokenPos first_position_ = 0, region_begin_ = 0;
  int n_sink_rows_ = 0;
  std::vector<float> cos_, sin_;           // [n_new][D/2]
  AlignedBuffer<fp16_t> k_rows_, v_rows_;  // [H][capacity][D]
  AlignedBuffer<float> prefix_phases_;     // [quantized groups][D/2][2][kLanes], unit after unit
  // [items][parts][group_size][mass windows]; parts: the earlier and, with want_heads_, the recent
  // queries.
  AlignedBuffer<float> item_mass_;
  int mass_parts_ = 1;
  std::vector<float> extremes_;  // [n_threads][H][head_extreme_floats()]; empty: nobody asked
  int range_from_ = 0;           // first position that counts for them
  std::ptrdiff_t mass_stride_ = 0;
  // What the prompt's rows saw of one unit; sizes in windows, or, with want_heads_, in sums: a
  // HeadRecord's a window.
  struct UnitPrompt {
    std::size_t phases_at = 0;
    std::vector<GroupRef> groups;             // Quantized, rung after rung
    std::vector<const Geometry*> geometries;  // of the groups
    std::vector<int> columns;                 // of the Quantized windows among an item's masses
    std::vector<double> full, quantized, region;
  };
  std::vector<UnitPrompt> unit_prompt_;
  PromptLayer prompt_layer_;
  // For a policy that selects once: last queries [n_heads][n_last][D]; sums over the queries before
  // RoPE, [n_heads][D] and [n_heads][D][D], then mean and covariance; column sums
  // [n_heads][tokens].
  int n_last_ = 0;
  AlignedBuffer<float> q_last_;
  std::vector<double> query_sum_, query_products_;
  std::vector<std::vector<double>> head_mass_;
  std::vector<std::span<const double>> head_mass_views_;

  // Decode mode.
  std::vector<float> step_cos_, step_sin_;  // [D/2] of the current position
  AlignedBuffer<float> q_back_;             // [H][query_back_floats()]
  // Of the unit's query heads, items of all units: [items][heads][D], [items][heads].
  AlignedBuffer<float> partial_o_, partial_m_, partial_l_;
  // A unit's: [H][groups][group_size][kLanes], quantized then full; unit after unit.
  AlignedBuffer<float> window_sum_;
  AlignedBuffer<float> group_max_;  // the same without lanes
  AlignedBuffer<float> token_sum_;  // [n_heads][capacity], then [n_heads] max

  std::size_t workspace_peak_ = 0;
};

}  // namespace qevict
