// One layer's windows of one tier: groups of 16 equal slots, filled without holes.
//
//   slot:   0 ..15 | 16..31 | 32 33 34          groups 0 and 1 are full, the last one is allocated
//   for group:    0    |   1    |    2              exactly its 3 windows: bytes() = size() *
//   window bytes
//
// Removing a slot moves the last slot's window into the hole. The last group is re-laid when its
// number of windows changes; that happens only inside LayerCache::apply() (at routing events).
// Per-slot records (window id, attention mass, key norm, sums of single heads) move with their
// window.
// Thread safety: const access from any thread while no one mutates.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "kv/head_scores.h"
#include "kv/types.h"

namespace qevict {

class TierSlab {
 public:
  // tier: Full or Quantized. head_floats: size of a window's head record (head_scores.h), 0: none.
  TierSlab(const Geometry& geometry, Tier tier, std::size_t head_floats = 0);
  TierSlab(const TierSlab& other);  // deep copy (transactions)
  TierSlab& operator=(const TierSlab& other);
  TierSlab(TierSlab&&) noexcept = default;
  TierSlab& operator=(TierSlab&&) noexcept = default;

  const Geometry& geometry() const { return geometry_; }
  int size() const { return static_cast<int>(ids_.size()); }
  std::span<const GroupRef> groups() const { return groups_; }
  std::span<const WindowId> ids() const { return ids_; }
  std::span<double> mass() { return mass_; }
  std::span<const double> mass() const { return mass_; }
  std::span<const float> key_norm() const { return key_norm_; }
  // Head records of a group's windows, [head_floats][kLanes].
  float* group_heads(int group) { return heads_.data() + group * head_floats_ * kLanes; }
  HeadRecord heads(SlotId slot) const {
    if (head_floats_ == 0) return {};
    return {heads_.data() + (slot / kLanes) * head_floats_ * kLanes + slot % kLanes, kLanes};
  }
  void set_heads(SlotId slot, HeadRecord record);
  std::size_t window_bytes() const { return window_bytes_; }
  // Payload bytes held by the allocator (= size() * window_bytes()) and bytes of the slot records.
  std::size_t bytes() const { return bytes_; }
  std::size_t position_bytes() const;  // ids
  std::size_t score_bytes() const;     // mass, key norms, head records

  // --- mutation: LayerCache::apply() only ---
  // Removes the given slots (any order, no duplicates), then grows by n_added slots whose records
  // and payload are unset; returns the first new slot. Re-lays at most the old and the new last
  // group.
  SlotId remove_and_grow(std::span<const SlotId> removed, int n_added);
  void set_record(SlotId slot, WindowId id, double mass, float key_norm);
  // Full: rows [H][Omega][D]. Quantized: a QuantBlock's bytes.
  void store_full(SlotId slot, const fp16_t* k, const fp16_t* v);
  void load_full(SlotId slot, fp16_t* k, fp16_t* v) const;
  void store_block(SlotId slot, const std::uint8_t* block);
  void load_block(SlotId slot, std::uint8_t* block) const;
  void clear();

 private:
  struct Free {
    void operator()(std::uint8_t* p) const noexcept;
  };
  using Buffer = std::unique_ptr<std::uint8_t[], Free>;

  Buffer allocate(int lanes) const;  // uninitialised
  // Copies one window between two groups of this tier; `scratch` holds it in between.
  void copy_lane(const GroupRef& from, int from_lane, std::uint8_t* to, int to_lanes, int to_lane,
                 std::vector<fp16_t>& scratch) const;
  void fill_holes(std::span<const SlotId> removed, int n_kept, std::vector<fp16_t>& scratch);
  void resize_groups(int n_old, int n_kept, int n_new, std::vector<fp16_t>& scratch);

  Geometry geometry_;
  Tier tier_;
  std::size_t head_floats_;
  std::size_t window_bytes_;
  std::size_t bytes_ = 0;
  std::vector<Buffer> buffers_;
  std::vector<GroupRef> groups_;
  std::vector<WindowId> ids_;
  std::vector<double> mass_;
  std::vector<float> key_norm_;
  std::vector<float> heads_;  // [groups][head_floats][kLanes]
};

}  // namespace qevict
