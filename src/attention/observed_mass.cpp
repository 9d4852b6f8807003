// What TieredAttention tells a MassObserver.
#include <algorithm>
#include <cmath>

#include "attention/tiered_attention.h"
#include "base/math.h"

namespace qevict {

void TieredAttention::set_observer(MassObserver* observer) {
  QE_CHECK(observer == nullptr || (materialised_ == nullptr && codec_ == nullptr));
  observer_ = observer;
  want_mass_ = cache_.needs().mass || want_heads_ || observer != nullptr;
}

void TieredAttention::reserve_observed(std::size_t groups, int capacity) {
  if (observer_ == nullptr) return;
  observed_.reserve(std::max(groups * kLanes, static_cast<std::size_t>(capacity)));
}

void TieredAttention::observe_prompt(int layer, int kv_head, int group_head, const float* mass,
                                     int n_region) noexcept {
  const int head = kv_head * geometry_.group_size() + group_head;
  const LayerCache& cache = cache_.unit(layer, unit_of(kv_head));
  const std::span<const WindowId> full = cache.full().ids();
  observer_->on_windows(layer, head, full, {mass, full.size()});
  mass += cache.full().groups().size() * kLanes;
  for (int r = 0; r < cache.n_rungs() && uses_quantized(cache); ++r) {
    const std::span<const WindowId> quantized = cache.quantized(r).ids();
    observer_->on_windows(layer, head, quantized, {mass, quantized.size()});
    mass += cache.quantized(r).groups().size() * kLanes;
  }
  observer_->on_run(layer, head, region_begin_, geometry_.window,
                    {mass, static_cast<std::size_t>(n_region)});
}

void TieredAttention::observe_step(int layer, const StepUnit& unit,
                                   const SoftmaxState& total) noexcept {
  const Geometry& g = unit_geometry_;
  const int gs = g.group_size();
  const LayerCache& cache = cache_.unit(layer, unit.index);
  const std::size_t n_quantized = cache.n_quantized_groups();
  const std::size_t n_groups = n_quantized + cache.full().groups().size();
  const RecentRef recent = cache.recent().ref();
  const int sinks = cache.recent().n_sinks();
  float* scaled = observed_.data();
  for (int h = 0; h < g.n_heads; ++h) {
    const int head = unit.index * g.n_heads + h;
    const auto tell_tier = [&](std::span<const WindowId> ids, std::size_t first_group) {
      for (std::size_t w = 0; w < ids.size(); ++w) {
        const std::size_t group = unit.first_group * g.n_kv_heads +
                                  static_cast<std::size_t>(h / gs) * n_groups + first_group +
                                  w / kLanes;
        const std::size_t row = group * gs + h % gs;
        scaled[w] = window_sum_.data()[row * kLanes + w % kLanes] *
                    mass_factor(group_max_.data()[row], total, h);
      }
      observer_->on_windows(layer, head, ids, {scaled, ids.size()});
    };
    std::size_t first_group = 0;
    for (int r = 0; r < cache.n_rungs() && uses_quantized(cache); ++r) {
      tell_tier(cache.quantized(r).ids(), first_group);
      first_group += cache.quantized(r).groups().size();
    }
    tell_tier(cache.full().ids(), n_quantized);

    const float* sum = token_sum_.data() + static_cast<std::size_t>(head) * recent.capacity;
    const float* max =
        token_sum_.data() + static_cast<std::size_t>(geometry_.n_heads) * recent.capacity;
    const float factor = mass_factor(max[head], total, h);
    for (int t = 0; t < recent.n_tokens; ++t) scaled[t] = sum[t] * factor;
    observer_->on_run(layer, head, 0, 1, {scaled, static_cast<std::size_t>(sinks)});
    observer_->on_run(layer, head, cache.local_begin(), 1,
                      {scaled + sinks, static_cast<std::size_t>(recent.n_tokens - sinks)});
  }
}

}  // namespace qevict
