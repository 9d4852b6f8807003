// TieredAttention's decode mode: one token over recent, Full and Quantized windows.
#include <algorithm>
#include <cmath>

#include "attention/tiered_attention.h"
#include "base/math.h"

namespace qevict {
namespace {

// Groups an item walks: 4 x 16 windows keeps an item's phases and data in L2. Smaller items share
// more evenly but lose it again (each packs the rotated queries anew): measured slower at 4K.
constexpr int kItemGroups = 4;

// The same amount of work where windows are tiny: single tokens are never quantised.
int item_groups(int window) { return window < 4 ? 8 * kItemGroups / window : kItemGroups; }

}  // namespace

TieredAttention::StepItems TieredAttention::step_items(const LayerCache& unit) const {
  const int per_item = item_groups(geometry_.window);
  StepItems items;
  for (int r = 0; r < unit.n_rungs() && uses_quantized(unit); ++r) {
    items.quantized += ceil_div(static_cast<int>(unit.quantized(r).groups().size()), per_item);
  }
  items.full = ceil_div(static_cast<int>(unit.full().groups().size()), per_item);
  items.total = items.quantized + items.full + 1;
  return items;
}

TieredAttention::StepGroups TieredAttention::step_groups(const LayerCache& unit, int item) const {
  const int per_item = item_groups(geometry_.window);
  StepGroups at;
  const auto find = [&](const TierSlab& slab) {
    const int groups = static_cast<int>(slab.groups().size());
    const int items = ceil_div(groups, per_item);
    if (item < items) {
      at.slab = &slab;
      at.first = item * per_item;
      at.n = std::min(per_item, groups - at.first);
      return true;
    }
    item -= items;
    at.first_in_unit += groups;
    return false;
  };
  at.quantized = true;
  for (int r = 0; r < unit.n_rungs() && uses_quantized(unit); ++r) {
    if (find(unit.quantized(r))) return at;
  }
  at.quantized = false;
  at.first_in_unit = unit.n_quantized_groups();
  find(unit.full());
  return at;
}

TieredAttention::StepUnit TieredAttention::first_unit(int layer) const {
  return {0, 0, 0, step_items(cache_.unit(layer, 0))};
}

void TieredAttention::next_unit(int layer, StepUnit& unit) const {
  const LayerCache& cache = cache_.unit(layer, unit.index);
  unit.first_item += unit.items.total;
  unit.first_group += cache.full().groups().size() + cache.n_quantized_groups();
  if (++unit.index < cache_.units_per_layer()) {
    unit.items = step_items(cache_.unit(layer, unit.index));
  }
}

int TieredAttention::layer_items(int layer) const {
  int items = 0;
  for (int u = 0; u < cache_.units_per_layer(); ++u) {
    items += step_items(cache_.unit(layer, u)).total;
  }
  return items;
}

void TieredAttention::begin_step() {
  const Geometry& g = geometry_;
  rope_angles(cache_.rope(), cache_.n_tokens(), step_cos_.data(), step_sin_.data());
  int items = 0;
  std::size_t groups = 0;
  int capacity = 0;
  for (int i = 0; i < cache_.n_layers(); ++i) {
    progress_[i].claimed.store(0, std::memory_order_relaxed);
    progress_[i].finished.store(0, std::memory_order_relaxed);
    items = std::max(items, layer_items(i));
    std::size_t layer_groups = 0;
    for (int u = 0; u < cache_.units_per_layer(); ++u) {
      const LayerCache& unit = cache_.unit(i, u);
      layer_groups += unit.full().groups().size() + unit.n_quantized_groups();
      capacity = std::max(capacity, unit.recent().ref().capacity);
    }
    groups = std::max(groups, layer_groups);
  }
  const std::size_t heads = g.n_heads;
  const std::size_t unit_heads = unit_geometry_.n_heads;
  q_.reserve(heads * g.head_dim);
  if (codec_) {
    codec_->begin_step();
    return note_peak();
  }
  if (materialised_) {
    materialised_->begin_step();
    return note_peak();
  }
  q_back_.reserve(g.n_kv_heads * query_back_floats(g));
  partial_o_.reserve(items * unit_heads * g.head_dim);
  partial_m_.reserve(items * unit_heads);
  partial_l_.reserve(items * unit_heads);
  if (want_mass_) {
    window_sum_.reserve(groups * unit_heads * kLanes);
    group_max_.reserve(groups * unit_heads);
    token_sum_.reserve(heads * capacity + heads);
  }
  reserve_observed(groups, capacity);
  scratch_stride_ = static_cast<std::size_t>(kItemGroups) * g.head_dim * kLanes * sizeof(float);
  thread_scratch_.reserve(scratch_stride_ * n_threads_);
  note_peak();
}

void TieredAttention::prepare_step(int layer, const QkvBlock& qkv, int ith, int nth) noexcept {
  const Geometry& g = geometry_;
  const int d = g.head_dim;
  alignas(64) float row[1024];
  bool finite = true;
  for (int h = ith; h < g.n_kv_heads; h += nth) {
    std::copy_n(qkv.k + h * d, d, row);
    rope_rotate(cache_.rope(), step_cos_.data(), step_sin_.data(), 1.0F, row);
    for (int c = 0; c < d; ++c) {
      finite &= std::fabs(row[c]) < 65520.0F && std::fabs(qkv.v[h * d + c]) < 65520.0F;
    }
    cache_.append(layer, h, row, qkv.v + h * d);
    float* q = q_.data() + static_cast<std::size_t>(h) * g.group_size() * d;
    for (int i = 0; i < g.group_size() * d; ++i) {
      q[i] = qkv.q[static_cast<std::size_t>(h) * g.group_size() * d + i] * scale_;
    }
    for (int i = 0; i < g.group_size(); ++i) {
      rope_rotate(cache_.rope(), step_cos_.data(), step_sin_.data(), 1.0F, q + i * d);
    }
    if (uses_quantized(cache_.unit(layer, unit_of(h)))) {
      kernels_.rotate_queries_back(
          g, q, back_cos_.data(), back_sin_.data(),
          q_back_.data() + static_cast<std::size_t>(h) * query_back_floats(g));
    }
  }
  int none = -1;
  if (!finite) nonfinite_layer_.compare_exchange_strong(none, layer);
}

void TieredAttention::attend_step(int layer, float* out, int ith) noexcept {
  const int total = layer_items(layer);
  Progress& progress = progress_[layer];
  for (int i = progress.claimed.fetch_add(1); i < total; i = progress.claimed.fetch_add(1)) {
    run_step_item(layer, i, ith);
    if (progress.finished.fetch_add(1, std::memory_order_acq_rel) == total - 1) {
      finish_step(layer, out);
    }
  }
}

void TieredAttention::run_step_item(int layer, int item, int ith) noexcept {
  StepUnit unit = first_unit(layer);
  while (item >= unit.first_item + unit.items.total) next_unit(layer, unit);
  const Geometry& g = unit_geometry_;
  const int gs = g.group_size();
  const int d = g.head_dim;
  const LayerCache& cache = cache_.unit(layer, unit.index);
  const StepGroups work = step_groups(cache, item - unit.first_item);
  const int n = work.n;
  const GroupRef* groups = n > 0 ? work.slab->groups().data() + work.first : nullptr;
  const int unit_groups =
      cache.n_quantized_groups() + static_cast<int>(cache.full().groups().size());

  auto* phases = reinterpret_cast<float*>(thread_scratch_.data() + scratch_stride_ * ith);
  for (int i = 0; work.quantized && i < n; ++i) {
    kernels_.window_phases(cache_.phases(), work.slab->ids().data() + (work.first + i) * kLanes,
                           groups[i].lanes, phases + static_cast<std::size_t>(i) * d * kLanes);
  }
  for (int h = 0; h < g.n_kv_heads; ++h) {
    const std::size_t at =
        static_cast<std::size_t>(item) * g.n_heads + static_cast<std::size_t>(h) * gs;
    const SoftmaxState state{partial_o_.data() + at * d, partial_m_.data() + at,
                             partial_l_.data() + at};
    softmax_reset(state, gs, d);
    GroupMass mass;
    if (want_mass_ && n > 0) {
      // Sums of the Quantized groups stand before those of the Full groups, per KV head.
      const std::size_t first = unit.first_group * g.n_kv_heads +
                                static_cast<std::size_t>(h) * unit_groups + work.first_in_unit +
                                work.first;
      mass = {window_sum_.data() + first * gs * kLanes, group_max_.data() + first * gs, power_};
    }
    const std::size_t kv_head = static_cast<std::size_t>(unit.index) * g.n_kv_heads + h;
    const std::size_t head = kv_head * gs;
    const float* q = q_.data() + head * d;
    if (work.quantized) {
      kernels_.attend_quantized({&work.slab->geometry(), h,
                                 q_back_.data() + kv_head * query_back_floats(g), phases, groups, n,
                                 state, mass, cache.range()});
    } else if (n > 0) {
      kernels_.attend_full({&unit_geometry_, h, q, groups, n, state, mass});
    } else {
      const RecentRef recent = cache.recent().ref();
      float* sum = want_mass_ ? token_sum_.data() + head * recent.capacity : nullptr;
      float* max = want_mass_
                       ? token_sum_.data() +
                             static_cast<std::size_t>(geometry_.n_heads) * recent.capacity + head
                       : nullptr;
      kernels_.attend_recent({&unit_geometry_, h, q, recent, state, sum, max, power_});
    }
  }
}

void TieredAttention::finish_step(int layer, float* out) noexcept {
  const Geometry& g = unit_geometry_;
  const int d = g.head_dim;
  StepUnit unit = first_unit(layer);
  for (int u = 0; u < cache_.units_per_layer(); ++u, next_unit(layer, unit)) {
    // Merge into the unit's first item, in item order.
    const std::size_t first = static_cast<std::size_t>(unit.first_item) * g.n_heads;
    const SoftmaxState total{partial_o_.data() + first * d, partial_m_.data() + first,
                             partial_l_.data() + first};
    for (int i = 1; i < unit.items.total; ++i) {
      const std::size_t at = first + static_cast<std::size_t>(i) * g.n_heads;
      softmax_merge(total,
                    {partial_o_.data() + at * d, partial_m_.data() + at, partial_l_.data() + at},
                    g.n_heads, d);
    }
    float* unit_out = out + std::ptrdiff_t{u} * g.n_heads * d;
    for (int h = 0; h < g.n_heads; ++h) {
      const float inverse = 1.0F / total.l[h];
      for (int c = 0; c < d; ++c) unit_out[h * d + c] = total.o[h * d + c] * inverse;
    }
    if (want_heads_) {
      add_step_heads(layer, unit, total);
    } else if (want_mass_) {
      add_step_mass(layer, unit, total);
    }
    if (observer_ != nullptr) observe_step(layer, unit, total);
  }
}

float TieredAttention::mass_factor(float max, const SoftmaxState& total, int head) const noexcept {
  const float norm = power_ == 1.0F ? total.l[head] : std::pow(total.l[head], power_);
  return std::exp(power_ * (max - total.m[head])) / norm;
}

template <typename Add>
void TieredAttention::each_local_mass(const LayerCache& cache, const StepUnit& unit,
                                      const SoftmaxState& total, float scale,
                                      Add add) const noexcept {
  const RecentRef recent = cache.recent().ref();
  const int sinks = cache.recent().n_sinks();
  const int first_head = unit.index * unit_geometry_.n_heads;
  const float* max =
      token_sum_.data() + static_cast<std::size_t>(geometry_.n_heads) * recent.capacity;
  for (int h = 0; h < unit_geometry_.n_heads; ++h) {
    const float f = mass_factor(max[first_head + h], total, h) * scale;
    const float* sum =
        token_sum_.data() + static_cast<std::size_t>(first_head + h) * recent.capacity;
    for (int t = sinks; t < recent.n_tokens; ++t) {
      add(h, (t - sinks) / unit_geometry_.window, sum[t] * f);
    }
  }
}

void TieredAttention::add_step_mass(int layer, const StepUnit& unit,
                                    const SoftmaxState& total) noexcept {
  const Geometry& g = unit_geometry_;
  const int gs = g.group_size();
  LayerCache& cache = cache_.unit(layer, unit.index);
  const std::span<double> full = cache.full_mass();
  const std::span<double> local = cache.local_mass();
  cache.decay_mass(decay_);
  const int quantized_groups = cache.n_quantized_groups();
  const int full_groups = static_cast<int>(cache.full().groups().size());
  const std::size_t unit_group = unit.first_group * g.n_kv_heads;
  const float mean = 1.0F / static_cast<float>(g.n_heads);
  const auto factor = [&](float max, int head) { return mass_factor(max, total, head) * mean; };
  const auto add_groups = [&](int first, int n_groups, std::span<double> masses) {
    for (int i = 0; i < n_groups; ++i) {
      float sum[kLanes] = {};
      for (int h = 0; h < g.n_kv_heads; ++h) {
        const std::size_t at =
            unit_group + static_cast<std::size_t>(h) * (quantized_groups + full_groups) + first + i;
        for (int j = 0; j < gs; ++j) {
          const float f = factor(group_max_.data()[at * gs + j], h * gs + j);
          const float* w = window_sum_.data() + (at * gs + j) * kLanes;
          for (int lane = 0; lane < kLanes; ++lane) sum[lane] += w[lane] * f;
        }
      }
      const int lanes = std::min(kLanes, static_cast<int>(masses.size()) - i * kLanes);
      for (int lane = 0; lane < lanes; ++lane) masses[i * kLanes + lane] += sum[lane];
    }
  };
  int first_group = 0;
  for (int r = 0; r < cache.n_rungs(); ++r) {
    const int n_groups = static_cast<int>(cache.quantized(r).groups().size());
    if (unit.items.quantized > 0) add_groups(first_group, n_groups, cache.quantized_mass(r));
    first_group += n_groups;
  }
  add_groups(quantized_groups, full_groups, full);

  each_local_mass(cache, unit, total, mean,
                  [&](int, int window, float mass) { local[window] += static_cast<double>(mass); });
}

// The same for the head records: a step's queries are recent ones.
void TieredAttention::add_step_heads(int layer, const StepUnit& unit,
                                     const SoftmaxState& total) noexcept {
  const Geometry& g = unit_geometry_;
  const int gs = g.group_size();
  LayerCache& cache = cache_.unit(layer, unit.index);
  const std::size_t unit_group = unit.first_group * g.n_kv_heads;
  const std::size_t unit_groups = cache.n_quantized_groups() + cache.full().groups().size();
  // records: of the group, [2][n_heads][kLanes]; lanes that no window has get zeros.
  const auto add_group = [&](std::size_t group, float* records) {
    for (int head = 0; head < g.n_heads; ++head) {
      const std::size_t at = (unit_group + head / gs * unit_groups + group) * gs + head % gs;
      const float f = mass_factor(group_max_.data()[at], total, head);
      const float* sum = window_sum_.data() + at * kLanes;
      float* record = records + static_cast<std::ptrdiff_t>(g.n_heads + head) * kLanes;
      for (int lane = 0; lane < kLanes; ++lane) record[lane] += sum[lane] * f;
    }
  };
  std::size_t group = 0;
  for (int r = 0; r < cache.n_rungs(); ++r) {
    const int n_groups = static_cast<int>(cache.quantized(r).groups().size());
    for (int i = 0; i < n_groups; ++i, ++group) {
      if (unit.items.quantized > 0) add_group(group, cache.quantized_heads(r, i));
    }
  }
  for (std::size_t i = 0; group < unit_groups; ++i, ++group) {
    add_group(group, cache.full_heads(static_cast<int>(i)));
  }

  const std::span<float> local = cache.local_heads();
  each_local_mass(cache, unit, total, 1.0F, [&](int head, int window, float mass) {
    local[window * cache.head_floats() + g.n_heads + head] += mass;
  });
}

}  // namespace qevict
