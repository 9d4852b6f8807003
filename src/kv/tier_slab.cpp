#include "kv/tier_slab.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/check.h"
#include "kernels/layout.h"

namespace qevict {
namespace {

constexpr std::align_val_t kAlignment{64};

int lanes_of(int group, int n_windows) { return std::clamp(n_windows - group * kLanes, 0, kLanes); }
int groups_of(int n_windows) { return (n_windows + kLanes - 1) / kLanes; }

}  // namespace

void TierSlab::Free::operator()(std::uint8_t* p) const noexcept {
  ::operator delete[](p, kAlignment);
}

TierSlab::TierSlab(const Geometry& geometry, Tier tier, std::size_t head_floats)
    : geometry_(geometry),
      tier_(tier),
      head_floats_(head_floats),
      window_bytes_(tier == Tier::Full ? geometry.full_window_bytes()
                                       : geometry.quantized_window_bytes()) {
  QE_CHECK(tier == Tier::Full || tier == Tier::Quantized);
}

TierSlab::TierSlab(const TierSlab& other)
    : geometry_(other.geometry_),
      tier_(other.tier_),
      head_floats_(other.head_floats_),
      window_bytes_(other.window_bytes_),
      bytes_(other.bytes_),
      ids_(other.ids_),
      mass_(other.mass_),
      key_norm_(other.key_norm_),
      heads_(other.heads_) {
  for (const GroupRef& group : other.groups_) {
    Buffer copy = allocate(group.lanes);
    std::memcpy(copy.get(), group.data, window_bytes_ * static_cast<std::size_t>(group.lanes));
    groups_.push_back({copy.get(), group.lanes});
    buffers_.push_back(std::move(copy));
  }
}

TierSlab& TierSlab::operator=(const TierSlab& other) {
  if (this != &other) *this = TierSlab(other);
  return *this;
}

TierSlab::Buffer TierSlab::allocate(int lanes) const {
  return Buffer(static_cast<std::uint8_t*>(
      ::operator new[](window_bytes_* static_cast<std::size_t>(lanes), kAlignment)));
}

std::size_t TierSlab::position_bytes() const { return ids_.size() * sizeof(WindowId); }
std::size_t TierSlab::score_bytes() const {
  return mass_.size() * sizeof(double) + (key_norm_.size() + heads_.size()) * sizeof(float);
}

void TierSlab::copy_lane(const GroupRef& from, int from_lane, std::uint8_t* to, int to_lanes,
                         int to_lane, std::vector<fp16_t>& scratch) const {
  scratch.resize(window_bytes_ / sizeof(fp16_t));
  if (tier_ == Tier::Full) {
    fp16_t* const v = scratch.data() + scratch.size() / 2;
    full_group_load(geometry_, from.data, from.lanes, from_lane, scratch.data(), v);
    full_group_store(geometry_, to, to_lanes, to_lane, scratch.data(), v);
  } else {
    auto* const block = reinterpret_cast<std::uint8_t*>(scratch.data());
    quant_group_load(geometry_, from.data, from.lanes, from_lane, block);
    quant_group_store(geometry_, to, to_lanes, to_lane, block);
  }
}

SlotId TierSlab::remove_and_grow(std::span<const SlotId> removed, int n_added) {
  const int n_old = size();
  const int n_kept = n_old - static_cast<int>(removed.size());
  QE_CHECK(n_kept >= 0 && n_added >= 0);
  std::vector<fp16_t> scratch;
  fill_holes(removed, n_kept, scratch);
  resize_groups(n_old, n_kept, n_kept + n_added, scratch);
  return n_kept;
}

void TierSlab::fill_holes(std::span<const SlotId> removed, int n_kept,
                          std::vector<fp16_t>& scratch) {
  if (removed.empty()) return;
  // Marks the removed slots by an id that no window has.
  constexpr WindowId kHole = -1;
  for (const SlotId slot : removed) {
    QE_CHECK(slot >= 0 && slot < size() && ids_[slot] != kHole);
    ids_[slot] = kHole;
  }
  SlotId tail = size() - 1;
  for (const SlotId hole : removed) {
    if (hole >= n_kept) continue;
    while (ids_[tail] == kHole) --tail;
    const GroupRef& to = groups_[hole / kLanes];
    copy_lane(groups_[tail / kLanes], tail % kLanes, buffers_[hole / kLanes].get(), to.lanes,
              hole % kLanes, scratch);
    set_record(hole, ids_[tail], mass_[tail], key_norm_[tail]);
    set_heads(hole, heads(tail));
    --tail;
  }
}

void TierSlab::resize_groups(int n_old, int n_kept, int n_new, std::vector<fp16_t>& scratch) {
  const int n_groups = groups_of(n_new);
  buffers_.resize(static_cast<std::size_t>(std::max(n_groups, groups_of(n_old))));
  groups_.resize(buffers_.size());
  for (int g = 0; g < static_cast<int>(buffers_.size()); ++g) {
    const int lanes = lanes_of(g, n_new);
    if (lanes == groups_[g].lanes) continue;
    Buffer fresh = lanes > 0 ? allocate(lanes) : Buffer();
    for (int lane = 0; lane < std::min(lanes, lanes_of(g, n_kept)); ++lane) {
      copy_lane(groups_[g], lane, fresh.get(), lanes, lane, scratch);
    }
    bytes_ += window_bytes_ * static_cast<std::size_t>(lanes);
    bytes_ -= window_bytes_ * static_cast<std::size_t>(groups_[g].lanes);
    buffers_[g] = std::move(fresh);
    groups_[g] = {buffers_[g].get(), lanes};
  }
  buffers_.resize(static_cast<std::size_t>(n_groups));
  groups_.resize(static_cast<std::size_t>(n_groups));
  ids_.resize(static_cast<std::size_t>(n_new));
  mass_.resize(static_cast<std::size_t>(n_new));
  key_norm_.resize(static_cast<std::size_t>(n_new));
  heads_.resize(static_cast<std::size_t>(n_groups) * head_floats_ * kLanes);
}

void TierSlab::set_record(SlotId slot, WindowId id, double mass, float key_norm) {
  ids_[slot] = id;
  mass_[slot] = mass;
  key_norm_[slot] = key_norm;
}

void TierSlab::set_heads(SlotId slot, HeadRecord record) {
  if (head_floats_ == 0) return;
  float* const to = group_heads(slot / kLanes) + slot % kLanes;
  for (std::size_t i = 0; i < head_floats_; ++i) to[i * kLanes] = record[static_cast<int>(i)];
}

void TierSlab::store_full(SlotId slot, const fp16_t* k, const fp16_t* v) {
  QE_DCHECK(tier_ == Tier::Full && slot < size());
  full_group_store(geometry_, buffers_[slot / kLanes].get(), groups_[slot / kLanes].lanes,
                   slot % kLanes, k, v);
}

void TierSlab::load_full(SlotId slot, fp16_t* k, fp16_t* v) const {
  QE_DCHECK(tier_ == Tier::Full && slot < size());
  const GroupRef& group = groups_[slot / kLanes];
  full_group_load(geometry_, group.data, group.lanes, slot % kLanes, k, v);
}

void TierSlab::store_block(SlotId slot, const std::uint8_t* block) {
  QE_DCHECK(tier_ == Tier::Quantized && slot < size());
  quant_group_store(geometry_, buffers_[slot / kLanes].get(), groups_[slot / kLanes].lanes,
                    slot % kLanes, block);
}

void TierSlab::load_block(SlotId slot, std::uint8_t* block) const {
  QE_DCHECK(tier_ == Tier::Quantized && slot < size());
  const GroupRef& group = groups_[slot / kLanes];
  quant_group_load(geometry_, group.data, group.lanes, slot % kLanes, block);
}

void TierSlab::clear() {
  buffers_.clear();
  groups_.clear();
  ids_.clear();
  mass_.clear();
  key_norm_.clear();
  heads_.clear();
  bytes_ = 0;
}

}  // namespace qevict
