// What both modes of the materialised attention share: the order of the windows, and bringing them
// back as fp16 rows.
#include "attention/materialised_attention.h"

#include <algorithm>

#include "base/math.h"
#include "kernels/dense.h"

namespace qevict {
namespace {

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

}  // namespace

MaterialisedAttention::MaterialisedAttention(KvCache& cache, const KernelTable& kernels,
                                             int n_threads)
    : cache_(cache),
      kernels_(kernels),
      geometry_(cache.geometry()),
      n_threads_(n_threads),
      want_mass_(cache.needs().mass),
      power_(static_cast<float>(cache.needs().mass_power)),
      decay_(static_cast<float>(cache.needs().mass_decay)),
      turn_(static_cast<std::size_t>(geometry_.window) * geometry_.head_dim) {
  for (int j = 0; j < geometry_.window; ++j) {
    float* cos = turn_.data() + static_cast<std::size_t>(j) * geometry_.head_dim;
    rope_angles(cache.rope(), j, cos, cos + geometry_.head_dim / 2);
  }
}

bool MaterialisedAttention::accessible(const LayerCache& layer) const {
  return cache_.config().quantized_accessible && layer.quantized().size() > 0;
}

int MaterialisedAttention::window_tokens(const LayerCache& layer) const {
  const int quantized = accessible(layer) ? layer.quantized().size() : 0;
  return (layer.full().size() + quantized) * geometry_.window;
}

void MaterialisedAttention::reserve_restore() {
  const Geometry& g = geometry_;
  const std::size_t rows = static_cast<std::size_t>(g.n_kv_heads) * g.window * g.head_dim;
  restore_stride_ = round_up(dense_restore_scratch_bytes(g), 64) +
                    round_up(sizeof(float) * g.head_dim * kLanes, 64) +
                    round_up(sizeof(fp16_t) * 2 * rows, 64);
  restore_.reserve(restore_stride_ * n_threads_);
  std::size_t full = 0;
  std::size_t quantized = 0;
  std::size_t windows = 0;
  for (int i = 0; i < cache_.n_layers(); ++i) {
    const LayerCache& layer = cache_.layer(i);
    full = std::max<std::size_t>(full, layer.full().size());
    quantized = std::max<std::size_t>(quantized, layer.quantized().size());
    windows = std::max<std::size_t>(
        windows, layer.full().size() + layer.quantized().size() + layer.n_evicted());
  }
  full_rank_.resize(std::max(full, full_rank_.size()));
  quantized_rank_.resize(std::max(quantized, quantized_rank_.size()));
  by_window_.resize(std::max(windows, by_window_.size()));
}

MaterialisedAttention::Restore MaterialisedAttention::restore_scratch(int ith) const {
  const Geometry& g = geometry_;
  std::uint8_t* part = restore_.data() + restore_stride_ * ith;
  Restore r{};
  r.scratch = part;
  part += round_up(dense_restore_scratch_bytes(g), 64);
  r.phases = reinterpret_cast<float*>(part);
  part += round_up(sizeof(float) * g.head_dim * kLanes, 64);
  r.k = reinterpret_cast<fp16_t*>(part);
  r.v = r.k + static_cast<std::size_t>(g.n_kv_heads) * g.window * g.head_dim;
  return r;
}

// Ids are dense (every ranked window has one), so a scatter and a scan sort them.
void MaterialisedAttention::order_windows(int layer) noexcept {
  const LayerCache& cache = cache_.layer(layer);
  std::fill(by_window_.begin(), by_window_.end(), -1);
  const auto scatter = [&](std::span<const WindowId> ids, std::int32_t first) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      by_window_[ids[i]] = first + static_cast<std::int32_t>(i);
    }
  };
  const std::int32_t n_full = cache.full().size();
  scatter(cache.full().ids(), 0);
  if (accessible(cache)) scatter(cache.quantized().ids(), n_full);
  std::int32_t rank = 0;
  for (const std::int32_t place : by_window_) {
    if (place < 0) continue;
    (place < n_full ? full_rank_[place] : quantized_rank_[place - n_full]) = rank++;
  }
}

void MaterialisedAttention::restore_full(const LayerCache& layer, int group, int first, int stride,
                                         int ith) noexcept {
  const Geometry& g = geometry_;
  const std::size_t row = static_cast<std::size_t>(g.window) * g.head_dim;
  const Restore r = restore_scratch(ith);
  for (int lane = 0; lane < layer.full().groups()[group].lanes; ++lane) {
    const int slot = group * kLanes + lane;
    layer.full().load_full(slot, r.k, r.v);
    for (int h = 0; h < g.n_kv_heads; ++h) {
      const std::size_t to = (static_cast<std::size_t>(h) * stride + first +
                              static_cast<std::size_t>(full_rank_[slot]) * g.window) *
                             g.head_dim;
      std::copy_n(r.k + h * row, row, dense_k_.data() + to);
      std::copy_n(r.v + h * row, row, dense_v_.data() + to);
    }
  }
}

void MaterialisedAttention::restore_quantized(const LayerCache& layer, int group, int first,
                                              int stride, int ith) noexcept {
  const Geometry& g = geometry_;
  const Restore r = restore_scratch(ith);
  const GroupRef& stored = layer.quantized().groups()[group];
  const int slot = group * kLanes;
  kernels_.window_phases(cache_.phases(), layer.quantized().ids().data() + slot, stored.lanes,
                         r.phases);
  DenseRestoreParams p;
  p.geometry = &geometry_;
  p.group = &stored;
  p.phases = r.phases;
  p.turn = turn_.data();
  p.scratch = r.scratch;
  for (p.kv_head = 0; p.kv_head < g.n_kv_heads; ++p.kv_head) {
    for (int lane = 0; lane < stored.lanes; ++lane) {
      const std::size_t to = (static_cast<std::size_t>(p.kv_head) * stride + first +
                              static_cast<std::size_t>(quantized_rank_[slot + lane]) * g.window) *
                             g.head_dim;
      p.k[lane] = dense_k_.data() + to;
      p.v[lane] = dense_v_.data() + to;
    }
    kernels_.dense->restore(p);
  }
}

std::size_t MaterialisedAttention::workspace_bytes() const {
  return dense_k_.bytes() + dense_v_.bytes() + scores_.bytes() + column_sums_.bytes() +
         partial_.bytes() + restore_.bytes() + products_.bytes() +
         (full_rank_.capacity() + quantized_rank_.capacity() + by_window_.capacity()) *
             sizeof(std::int32_t);
}

}  // namespace qevict
