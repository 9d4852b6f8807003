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

template <class T>
void add(std::span<T> into, std::span<const double> mass) {
  QE_CHECK(mass.empty() || mass.size() == into.size());
  for (std::size_t i = 0; i < mass.size(); ++i) into[i] = static_cast<T>(into[i] + mass[i]);
}

std::vector<TierSlab> make_rungs(const Geometry& g, bool ladder, std::size_t head_floats) {
  std::vector<TierSlab> rungs;
  if (!ladder) rungs.emplace_back(g, Tier::Quantized, head_floats);
  for (RungId rung = 0; ladder && rung < kMaxRungs; ++rung) {
    rungs.emplace_back(rung_geometry(g, rung), Tier::Quantized, head_floats);
  }
  return rungs;
}

}  // namespace

CacheCounters& CacheCounters::operator+=(const CacheCounters& o) {
  events += o.events;
  promotions += o.promotions;
  demotions += o.demotions;
  first_demotions += o.first_demotions;
  reactivations += o.reactivations;
  evictions += o.evictions;
  lowerings += o.lowerings;
  return *this;
}

LayerCache::LayerCache(const Geometry& geometry, const RopeSpec& rope, int n_sink, bool ladder,
                       bool head_sums)
    : geometry_(geometry),
      rope_(&rope),
      n_sink_(n_sink),
      head_floats_(head_sums ? head_record_floats(geometry.n_heads) : 0),
      full_(geometry, Tier::Full, head_floats_),
      rungs_(make_rungs(geometry, ladder, head_floats_)),
      local_begin_(n_sink) {
  if (ladder) range_ = UnitRange(rungs_.back().geometry());
  if (head_sums) evicted_heads_.reset(geometry.n_heads);
}

int LayerCache::n_quantized() const {
  int n = 0;
  for (const TierSlab& slab : rungs_) n += slab.size();
  return n;
}

int LayerCache::n_quantized_groups() const {
  std::size_t n = 0;
  for (const TierSlab& slab : rungs_) n += slab.groups().size();
  return static_cast<int>(n);
}

void LayerCache::decay_mass(double factor) {
  if (factor == 1.0) return;
  const auto decay = [factor](std::span<double> masses) {
    for (double& m : masses) m *= factor;
  };
  decay(full_mass());
  for (TierSlab& slab : rungs_) decay(slab.mass());
  decay(local_mass_);
}

TierBytes LayerCache::bytes() const {
  TierBytes bytes{recent_.sink_bytes(), recent_.local_bytes(), full_.bytes(), range_.bytes()};
  for (const TierSlab& slab : rungs_) bytes.quantized += slab.bytes();
  return bytes;
}

MetadataBytes LayerCache::metadata() const {
  MetadataBytes m;
  m.positions = full_.position_bytes();
  m.ledger = ledger_.entry_bytes();
  m.dormant = ledger_.block_bytes();
  m.scores = full_.score_bytes() + local_mass_.capacity() * sizeof(double) +
             local_heads_.capacity() * sizeof(float) + evicted_heads_.bytes();
  for (const TierSlab& slab : rungs_) {
    m.positions += slab.position_bytes();
    m.scores += slab.score_bytes();
  }
  return m;
}

void LayerCache::list_candidates(const Aged& aged, bool keep_full, bool need_key_norm,
                                 RouteScratch& s) {
  // Windows by id: a scatter and a scan instead of a sort. The slots of Full and of the rungs are
  // interleaved; -1 is a window that is not there any more.
  const int n_slabs = 1 + n_rungs();
  s.by_window.assign(static_cast<std::size_t>(aged.first), -1);
  const auto scatter = [&](const TierSlab& slab, int index) {
    for (SlotId i = 0; i < slab.size(); ++i) s.by_window[slab.ids()[i]] = i * n_slabs + index;
  };
  if (!keep_full) scatter(full_, 0);
  for (int r = 0; r < n_rungs(); ++r) scatter(rungs_[r], 1 + r);
  s.candidates.clear();
  s.slots.clear();
  s.stored.clear();
  for (WindowId w = 0; w < aged.first; ++w) {
    const std::int32_t place = s.by_window[w];
    if (place == -1) continue;
    const int rung = place % n_slabs - 1;
    const TierSlab& slab = rung < 0 ? full_ : rungs_[rung];
    const SlotId slot = place / n_slabs;
    s.candidates.push_back({w, rung < 0 ? Tier::Full : Tier::Quantized,
                            static_cast<float>(slab.mass()[slot]), slab.key_norm()[slot],
                            static_cast<RungId>(rung)});
    s.slots.push_back(slot);
    s.stored.push_back(static_cast<RungId>(rung));
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
    s.stored.push_back(kUnquantised);
  }
}

HeadRecord LayerCache::heads_of(const WindowView& window, SlotId slot, const Aged& aged) const {
  if (window.tier == Tier::Full) return full_.heads(slot);
  if (window.tier == Tier::Quantized) return rungs_[window.rung].heads(slot);
  return {local_heads_.data() + static_cast<std::size_t>(window.id - aged.first) * head_floats_};
}

HeadView LayerCache::head_view(const Aged& aged, RouteScratch& s) const {
  s.heads.clear();
  for (std::size_t i = 0; i < s.candidates.size(); ++i) {
    s.heads.push_back(heads_of(s.candidates[i], s.slots[i], aged));
  }
  head_inverses(s.heads, geometry_.n_heads, evicted_heads_, s.head_inverse);
  return {geometry_.n_heads, s.heads, &evicted_heads_, s.head_inverse};
}

void LayerCache::add_prompt_mass(const PromptMass& mass, double decay, int n_region_windows) {
  local_mass_.resize(static_cast<std::size_t>(n_region_windows), 0.0);
  local_heads_.resize(static_cast<std::size_t>(n_region_windows) * head_floats_, 0.0F);
  decay_mass(decay);
  std::span<const double> quantized = mass.quantized;
  const auto add_slab = [&](TierSlab& slab, std::span<const double> sums) {
    if (head_floats_ == 0) return add(slab.mass(), sums);
    QE_CHECK(sums.empty() || sums.size() == slab.size() * head_floats_);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::size_t slot = i / head_floats_;
      float& sum = slab.group_heads(
          static_cast<int>(slot / kLanes))[i % head_floats_ * kLanes + slot % kLanes];
      sum = static_cast<float>(sum + sums[i]);
    }
  };
  add_slab(full_, mass.full);
  for (TierSlab& slab : rungs_) {
    const std::size_t n = slab.size() * std::max<std::size_t>(head_floats_, 1);
    if (quantized.empty()) break;
    add_slab(slab, quantized.first(n));
    quantized = quantized.subspan(n);
  }
  if (head_floats_ == 0) return add(std::span(local_mass_), mass.region);
  add(std::span(local_heads_), mass.region);
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
  std::vector<float> heads;
  heads.reserve(local_mass_.capacity() * head_floats_);
  heads.assign(local_heads_.begin(), local_heads_.end());
  local_heads_ = std::move(heads);
}

void LayerCache::push_row() {
  recent_.push_row();
  const int windows = (recent_.n_local_tokens() + geometry_.window - 1) / geometry_.window;
  if (static_cast<std::size_t>(windows) > local_mass_.size()) {
    local_mass_.push_back(0.0);
    local_heads_.resize(local_mass_.size() * head_floats_, 0.0F);
  }
}

void LayerCache::clear() {
  *this = LayerCache(geometry_, *rope_, n_sink_, ladder(), head_floats_ > 0);
}

}  // namespace qevict
