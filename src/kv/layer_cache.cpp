#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/codec.h"
#include "kv/kv_cache.h"
#include "kv/route_scratch.h"

namespace qevict {
namespace {

// Mean over tokens and KV heads of the keys' L2 norm; RoPE keeps norms. k: [n_rows][D].
float mean_key_norm(const fp16_t* k, int n_rows, int head_dim) {
  double sum = 0.0;
  for (int row = 0; row < n_rows; ++row) {
    double squares = 0.0;
    for (int c = 0; c < head_dim; ++c) {
      const double x = fp16_to_fp32(k[static_cast<std::ptrdiff_t>(row) * head_dim + c]);
      squares += x * x;
    }
    sum += std::sqrt(squares);
  }
  return static_cast<float>(sum / n_rows);
}

void add(std::span<double> into, std::span<const double> mass) {
  QE_CHECK(mass.empty() || mass.size() == into.size());
  for (std::size_t i = 0; i < mass.size(); ++i) into[i] += mass[i];
}

}  // namespace

CacheCounters& CacheCounters::operator+=(const CacheCounters& o) {
  events += o.events;
  promotions += o.promotions;
  demotions += o.demotions;
  first_demotions += o.first_demotions;
  reactivations += o.reactivations;
  evictions += o.evictions;
  return *this;
}

LayerCache::LayerCache(const Geometry& geometry, const RopeSpec& rope, int n_sink)
    : geometry_(geometry),
      rope_(&rope),
      n_sink_(n_sink),
      full_(geometry, Tier::Full),
      quantized_(geometry, Tier::Quantized),
      local_begin_(n_sink) {}

void LayerCache::decay_mass(double factor) {
  if (factor == 1.0) return;
  for (const std::span<double> masses : {full_mass(), quantized_mass(), local_mass()}) {
    for (double& m : masses) m *= factor;
  }
}

TierBytes LayerCache::bytes() const {
  return {recent_.sink_bytes(), recent_.local_bytes(), full_.bytes(), quantized_.bytes()};
}

MetadataBytes LayerCache::metadata() const {
  MetadataBytes m;
  m.positions = full_.position_bytes() + quantized_.position_bytes();
  m.ledger = ledger_.entry_bytes();
  m.dormant = ledger_.block_bytes();
  m.scores =
      full_.score_bytes() + quantized_.score_bytes() + local_mass_.capacity() * sizeof(double);
  return m;
}

void LayerCache::list_candidates(const Aged& aged, bool keep_full, bool need_key_norm,
                                 RouteScratch& s) {
  // Windows by id: a scatter and a scan instead of a sort. Full slots count up from 0, Quantized
  // slots down from -2; -1 is a window that is not there any more.
  s.by_window.assign(static_cast<std::size_t>(aged.first), -1);
  const std::span<const WindowId> full = full_.ids();
  const std::span<const WindowId> quantized = quantized_.ids();
  if (!keep_full) {
    for (std::size_t i = 0; i < full.size(); ++i) s.by_window[full[i]] = static_cast<SlotId>(i);
  }
  for (std::size_t i = 0; i < quantized.size(); ++i) {
    s.by_window[quantized[i]] = -2 - static_cast<SlotId>(i);
  }
  s.candidates.clear();
  s.slots.clear();
  for (WindowId w = 0; w < aged.first; ++w) {
    const std::int32_t place = s.by_window[w];
    if (place == -1) continue;
    const bool in_full = place >= 0;
    const TierSlab& slab = in_full ? full_ : quantized_;
    const SlotId slot = in_full ? place : -2 - place;
    s.candidates.push_back({w, in_full ? Tier::Full : Tier::Quantized,
                            static_cast<float>(slab.mass()[slot]), slab.key_norm()[slot]});
    s.slots.push_back(slot);
  }
  for (int i = 0; i < aged.count; ++i) {
    WindowView view{aged.first + i, Tier::Local, static_cast<float>(local_mass_[i]), 0.0F};
    if (need_key_norm) {
      load_aged(aged, view.id, s.k.data(), s.v.data());
      view.key_norm =
          mean_key_norm(s.k.data(), geometry_.n_kv_heads * geometry_.window, geometry_.head_dim);
    }
    s.candidates.push_back(view);
    s.slots.push_back(-1);
  }
}

void LayerCache::apply(const Aged& aged, RouteScratch& s, LayerEvent* event) {
  sort_moves(aged, s, event);
  // Promoted blocks leave their slots first; then Quantized takes its new windows while the demoted
  // ones are still in Full; then Full takes its own. Nothing is held twice but one window.
  for (const WindowMove& move : s.to_full) {
    if (move.from != Tier::Quantized) continue;
    std::vector<std::uint8_t> block(quantized_.window_bytes());
    quantized_.load_block(move.slot, block.data());
    ledger_.put(move.id, std::move(block));
  }
  fill_quantized(aged, s, event);
  fill_full(aged, s);
  local_mass_.erase(local_mass_.begin(), local_mass_.begin() + aged.count);
  local_begin_ += aged.count * geometry_.window;
  if (aged.rows == nullptr) recent_.drop_local(aged.count * geometry_.window);
  ++counters_.events;
}

void LayerCache::sort_moves(const Aged& aged, RouteScratch& s, LayerEvent* event) {
  s.to_full.clear();
  s.to_quantized.clear();
  s.freed_full.clear();
  s.freed_quantized.clear();
  for (std::size_t i = 0; i < s.candidates.size(); ++i) {
    const WindowView& window = s.candidates[i];
    const Tier to = s.plan.to[i];
    QE_CHECK(to != Tier::Local);
    if (to == window.tier) continue;
    WindowMove move{window.id, window.tier, s.slots[i], 0.0, window.key_norm};
    if (window.tier == Tier::Full) {
      move.mass = full_.mass()[move.slot];
      s.freed_full.push_back(move.slot);
    } else if (window.tier == Tier::Quantized) {
      move.mass = quantized_.mass()[move.slot];
      s.freed_quantized.push_back(move.slot);
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
      s.to_quantized.push_back(move);
      if (window.tier == Tier::Full) {
        ++counters_.demotions;
        if (event != nullptr) event->demoted.push_back(window.id);
      }
    } else {
      ledger_.erase(window.id);
      ++n_evicted_;
      ++counters_.evictions;
      if (event != nullptr) event->evicted.push_back(window.id);
    }
  }
}

void LayerCache::fill_quantized(const Aged& aged, RouteScratch& s, LayerEvent* event) {
  SlotId slot =
      quantized_.remove_and_grow(s.freed_quantized, static_cast<int>(s.to_quantized.size()));
  for (const WindowMove& move : s.to_quantized) {
    if (ledger_.contains(move.id)) {
      quantized_.store_block(slot, ledger_.take(move.id).data());
      ++counters_.reactivations;
      if (event != nullptr) event->reactivated.push_back(move.id);
    } else {
      if (move.from == Tier::Full) {
        full_.load_full(move.slot, s.k.data(), s.v.data());
      } else {
        load_aged(aged, move.id, s.k.data(), s.v.data());
      }
      quantize_window(geometry_, *rope_, n_sink_ + std::int64_t{move.id} * geometry_.window,
                      s.k.data(), s.v.data(), s.block.data(), s.floats.data());
      quantized_.store_block(slot, s.block.data());
      ++counters_.first_demotions;
      if (event != nullptr) event->first_demoted.push_back(move.id);
    }
    quantized_.set_record(slot++, move.id, move.mass, move.key_norm);
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
    full_.set_record(slot++, move.id, move.mass, move.key_norm);
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

void LayerCache::add_prompt_mass(const PromptMass& mass, double decay, int n_region_windows) {
  QE_CHECK(mass.region.empty() || mass.region.size() == static_cast<std::size_t>(n_region_windows));
  local_mass_.resize(static_cast<std::size_t>(n_region_windows), 0.0);
  if (decay != 1.0) {
    for (const std::span<double> masses :
         {full_.mass(), quantized_.mass(), std::span(local_mass_)}) {
      for (double& m : masses) m *= decay;
    }
  }
  add(full_.mass(), mass.full);
  add(quantized_.mass(), mass.quantized);
  add(local_mass_, mass.region);
}

void LayerCache::refill_recent(const PromptRows& rows, TokenPos n_tokens, int max_local,
                               std::int64_t context_tokens) {
  // A prompt may want more rows than the last one, or fewer; never more than the context holds.
  const std::int64_t wanted = std::min(std::int64_t{n_sink_} + max_local, context_tokens);
  if (recent_.max_tokens() != wanted) {
    recent_ = RecentStore(geometry_, n_sink_, max_local, context_tokens);
  }
  recent_.clear();
  const auto take = [&](int row) {
    const int to = recent_.push_row();
    for (int h = 0; h < geometry_.n_kv_heads; ++h) {
      const std::ptrdiff_t in =
          (static_cast<std::ptrdiff_t>(h) * rows.capacity + row) * geometry_.head_dim;
      recent_.write_fp16(to, h, rows.k + in, rows.v + in);
    }
  };
  for (int row = 0; row < rows.n_sink_rows; ++row) take(row);
  for (TokenPos p = local_begin_; p < n_tokens; ++p) {
    take(rows.n_sink_rows + (p - rows.region_begin));
  }
  // Room for the windows that decode steps may open, so that they do not allocate; no more, for the
  // prompt's own windows have just been ranked.
  std::vector<double> local;
  local.reserve(
      static_cast<std::size_t>((recent_.max_tokens() - recent_.n_sinks()) / geometry_.window + 2));
  local.assign(local_mass_.begin(), local_mass_.end());
  local_mass_ = std::move(local);
}

void LayerCache::push_row() {
  recent_.push_row();
  const int windows = (recent_.n_local_tokens() + geometry_.window - 1) / geometry_.window;
  if (static_cast<std::size_t>(windows) > local_mass_.size()) local_mass_.push_back(0.0);
}

void LayerCache::clear() { *this = LayerCache(geometry_, *rope_, n_sink_); }

}  // namespace qevict
