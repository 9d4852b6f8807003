// LayerCache::apply(): windows go to other tiers and rungs.
#include <algorithm>

#include "base/check.h"
#include "kernels/codec.h"
#include "kv/kv_cache.h"
#include "kv/route_scratch.h"

namespace qevict {

void LayerCache::apply(const Aged& aged, RouteScratch& s, LayerEvent* event) {
  sort_moves(aged, s, event);
  // Promoted blocks leave their slots first; then Quantized takes its new windows while the demoted
  // ones are still in Full, the lowest rung first, while what it takes is still on the higher ones;
  // then Full takes its own.
  for (const WindowMove& move : s.to_full) {
    if (move.from != Tier::Quantized) continue;
    std::vector<std::uint8_t> block(rungs_[move.rung].window_bytes());
    rungs_[move.rung].load_block(move.slot, block.data());
    ledger_.put(move.id, std::move(block));
  }
  fix_range(aged, s);
  for (int r = n_rungs() - 1; r >= 0; --r) fill_quantized(r, aged, s, event);
  fill_full(aged, s);
  local_mass_.erase(local_mass_.begin(), local_mass_.begin() + aged.count);
  local_heads_.erase(local_heads_.begin(),
                     local_heads_.begin() + static_cast<std::ptrdiff_t>(aged.count * head_floats_));
  local_begin_ += aged.count * geometry_.window;
  if (aged.rows == nullptr) recent_.drop_local(aged.count * geometry_.window);
  ++counters_.events;
}

void LayerCache::sort_moves(const Aged& aged, RouteScratch& s, LayerEvent* event) {
  s.to_full.clear();
  s.freed_full.clear();
  for (int r = 0; r < n_rungs(); ++r) {
    s.to_quantized[r].clear();
    s.freed_quantized[r].clear();
  }
  s.head_records.clear();
  for (std::size_t i = 0; i < s.candidates.size(); ++i) {
    const WindowView& window = s.candidates[i];
    const Tier to = s.plan.to[i];
    QE_CHECK(to != Tier::Local);
    const RungId rung = s.plan.rung.empty() ? RungId{0} : s.plan.rung[i];
    if (to == window.tier && (to != Tier::Quantized || rung == window.rung)) continue;
    WindowMove move{window.id,       window.tier, s.slots[i],           0.0,
                    window.key_norm, window.rung, s.head_records.size()};
    const HeadRecord heads = heads_of(window, move.slot, aged);
    for (std::size_t k = 0; k < head_floats_; ++k) {
      s.head_records.push_back(heads[static_cast<int>(k)]);
    }
    if (window.tier == Tier::Full) {
      move.mass = full_.mass()[move.slot];
      s.freed_full.push_back(move.slot);
    } else if (window.tier == Tier::Quantized) {
      move.mass = rungs_[window.rung].mass()[move.slot];
      s.freed_quantized[window.rung].push_back(move.slot);
    } else {
      move.mass = local_mass_[window.id - aged.first];
    }
    if (to == Tier::Full) {
      s.to_full.push_back(move);
      if (window.tier == Tier::Quantized) {
        ++counters_.promotions;
        if (event != nullptr) event->promoted.push_back(window.id);
      }
    } else if (to == Tier::Quantized) {
      s.to_quantized[rung].push_back(move);
      if (window.tier == Tier::Quantized) {
        QE_CHECK(rung > window.rung);  // bits only fall
        ++counters_.lowerings;
        if (event != nullptr) event->lowered.push_back(window.id);
      } else if (window.tier == Tier::Full) {
        ++counters_.demotions;
        if (event != nullptr) event->demoted.push_back(window.id);
      }
    } else {
      ledger_.erase(window.id);
      if (head_floats_ > 0) {
        retire_window(heads, geometry_.n_heads, s.head_inverse, evicted_heads_);
      }
      ++n_evicted_;
      ++counters_.evictions;
      if (event != nullptr) event->evicted.push_back(window.id);
    }
  }
}

void LayerCache::fix_range(const Aged& aged, RouteScratch& s) {
  const auto filled = [](const std::vector<WindowMove>& moves) { return !moves.empty(); };
  if (!range_.used() || range_.fixed() || std::ranges::none_of(s.to_quantized, filled)) return;
  // A prompt's rows were added when it was read. What a session generated before it had anything to
  // quantise was not: its local zone is all there is.
  const int d = geometry_.head_dim;
  float* const key = s.floats.data();
  float* const value = key + d;
  float* const cos = value + d;
  float* const sin = cos + d / 2;
  for (int t = 0; aged.rows == nullptr && t < recent_.n_local_tokens(); ++t) {
    rope_angles(*rope_, local_begin_ + t, cos, sin);
    for (int h = 0; h < geometry_.n_kv_heads; ++h) {
      recent_.read(recent_.n_sinks() + t, h, s.k.data(), s.v.data());
      for (int c = 0; c < d; ++c) {
        key[c] = fp16_to_fp32(s.k[c]);
        value[c] = fp16_to_fp32(s.v[c]);
      }
      rope_rotate(*rope_, cos, sin, -1.0F, key);
      range_.widen(h, 1, key, value);
    }
  }
  range_.fix();
}

void LayerCache::fill_quantized(int rung, const Aged& aged, RouteScratch& s, LayerEvent* event) {
  TierSlab& slab = rungs_[rung];
  const std::vector<WindowMove>& moves = s.to_quantized[rung];
  SlotId slot = slab.remove_and_grow(s.freed_quantized[rung], static_cast<int>(moves.size()));
  for (const WindowMove& move : moves) {
    if (move.from == Tier::Quantized) {
      const TierSlab& higher = rungs_[move.rung];
      std::uint8_t* const lower = s.block.data() + s.block.size() / 2;
      higher.load_block(move.slot, s.block.data());
      requantize_window(higher.geometry(), s.block.data(), slab.geometry(), lower, s.floats.data(),
                        range());
      slab.store_block(slot, lower);
    } else if (ledger_.contains(move.id)) {
      slab.store_block(slot, ledger_.take(move.id).data());
      ++counters_.reactivations;
      if (event != nullptr) event->reactivated.push_back(move.id);
    } else {
      if (move.from == Tier::Full) {
        full_.load_full(move.slot, s.k.data(), s.v.data());
      } else {
        load_aged(aged, move.id, s.k.data(), s.v.data());
      }
      quantize_window(slab.geometry(), *rope_, n_sink_ + std::int64_t{move.id} * geometry_.window,
                      s.k.data(), s.v.data(), s.block.data(), s.floats.data(), range());
      slab.store_block(slot, s.block.data());
      ++counters_.first_demotions;
      if (event != nullptr) event->first_demoted.push_back(move.id);
    }
    slab.set_record(slot, move.id, move.mass, move.key_norm);
    slab.set_heads(slot, {s.head_records.data() + move.heads});
    ++slot;
  }
}

void LayerCache::fill_full(const Aged& aged, RouteScratch& s) {
  SlotId slot = full_.remove_and_grow(s.freed_full, static_cast<int>(s.to_full.size()));
  for (const WindowMove& move : s.to_full) {
    if (move.from == Tier::Quantized) {
      restore_window(geometry_, *rope_, n_sink_ + std::int64_t{move.id} * geometry_.window,
                     ledger_.block(move.id).data(), s.k.data(), s.v.data(), s.floats.data());
    } else {
      load_aged(aged, move.id, s.k.data(), s.v.data());
    }
    full_.store_full(slot, s.k.data(), s.v.data());
    full_.set_record(slot, move.id, move.mass, move.key_norm);
    full_.set_heads(slot, {s.head_records.data() + move.heads});
    ++slot;
  }
}

void LayerCache::load_aged(const Aged& aged, WindowId window, fp16_t* k, fp16_t* v) const {
  const int d = geometry_.head_dim;
  const int omega = geometry_.window;
  const TokenPos position = n_sink_ + window * omega;
  for (int h = 0; h < geometry_.n_kv_heads; ++h) {
    const std::ptrdiff_t out = static_cast<std::ptrdiff_t>(h) * omega * d;
    if (aged.rows != nullptr) {
      const PromptRows& rows = *aged.rows;
      const std::ptrdiff_t row = rows.n_sink_rows + (position - rows.region_begin);
      const std::ptrdiff_t in = (static_cast<std::ptrdiff_t>(h) * rows.capacity + row) * d;
      std::copy_n(rows.k + in, omega * d, k + out);
      std::copy_n(rows.v + in, omega * d, v + out);
    } else {
      const int row = recent_.n_sinks() + (position - local_begin_);
      for (int j = 0; j < omega; ++j) {
        recent_.read(row + j, h, k + out + j * d, v + out + j * d);
      }
    }
  }
}

}  // namespace qevict
