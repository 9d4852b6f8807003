// TieredAttention's prompt mode: RoPE and storing of a block's K and V, causal attention of its
// queries over the compressed prefix and the layer's rows, and the column masses.
#include <algorithm>
#include <cmath>

#include "attention/tiered_attention.h"
#include "base/math.h"

namespace qevict {
namespace {

// Rounds a rotated row to fp16; false when a value does not fit (NaN, infinity, overflow).
bool round_row(const float* x, int n, fp16_t* out) noexcept {
  unsigned worst = 0;
  for (int i = 0; i < n; ++i) {
    out[i] = fp32_to_fp16(x[i]);
    worst = std::max(worst, static_cast<unsigned>(out[i] & 0x7fffU));
  }
  return worst < 0x7c00U;
}

}  // namespace

void TieredAttention::begin_prompt(int n_new, int max_block) {
  const Geometry& g = geometry_;
  const int pairs = g.head_dim / 2;
  in_prompt_ = true;
  n_new_ = n_new;
  max_block_ = std::min(max_block, n_new);
  first_position_ = cache_.n_tokens();
  const LayerCache& unit = cache_.unit(0, 0);  // all hold the same positions uncompressed
  const RecentStore& recent = unit.recent();
  n_prefix_rows_ = recent.n_tokens();
  if (codec_) {
    codec_->begin_prompt(n_new);
    n_prefix_rows_ = codec_->n_prefix_rows();
  }
  n_rows_capacity_ = n_prefix_rows_ + n_new;
  n_sink_rows_ = std::min(cache_.config().n_sink, first_position_ + n_new);
  region_begin_ = std::max(unit.local_begin(), cache_.config().n_sink);

  cos_.resize(static_cast<std::size_t>(n_new) * pairs);
  sin_.resize(cos_.size());
  for (int t = 0; t < n_new; ++t) {
    rope_angles(cache_.rope(), first_position_ + t, &cos_[static_cast<std::size_t>(t) * pairs],
                &sin_[static_cast<std::size_t>(t) * pairs]);
  }
  const std::size_t row_items =
      static_cast<std::size_t>(g.n_kv_heads) * n_rows_capacity_ * g.head_dim;
  k_rows_.resize_exactly(row_items);
  v_rows_.resize_exactly(row_items);
  q_.reserve(static_cast<std::size_t>(max_block_) * g.n_heads * g.head_dim);
  note_peak();
}

void TieredAttention::begin_layer(int layer) {
  const Geometry& g = geometry_;
  if (codec_) codec_->load_prefix(layer, n_rows_capacity_, k_rows_.data(), v_rows_.data());
  for (int h = 0; h < g.n_kv_heads && !codec_; ++h) {
    const RecentStore& recent = cache_.unit(layer, unit_of(h)).recent();
    for (int r = 0; r < n_prefix_rows_; ++r) {
      const std::size_t at = (static_cast<std::size_t>(h) * n_rows_capacity_ + r) * g.head_dim;
      recent.read(r, h % unit_geometry_.n_kv_heads, k_rows_.data() + at, v_rows_.data() + at);
    }
  }
  for (int i = 0; i < n_threads_ * g.n_kv_heads && !extremes_.empty(); ++i) {
    begin_head_extremes(g, extremes_of(0, i));
  }
  if (materialised_) materialised_->begin_layer(layer, n_rows_capacity_, max_block_);
  const int region_windows = ceil_div(std::max(0, n_rows_capacity_ - n_sink_rows_), g.window);
  int most_full_groups = 0;
  int most_quantized_groups = 0;
  std::size_t phases = 0;
  mass_stride_ = 0;
  for (int u = 0; u < cache_.units_per_layer(); ++u) {
    const LayerCache& cache = cache_.unit(layer, u);
    UnitPrompt& unit = unit_prompt_[u];
    list_prefix(layer, u);
    const int full_groups = ceil_div(cache.full().size(), kLanes);
    const int quantized_groups = static_cast<int>(unit.groups.size());
    unit.phases_at = phases;
    phases += static_cast<std::size_t>(quantized_groups) * g.head_dim * kLanes;
    // Kernels may write whole groups of lanes, the region's last one included.
    mass_stride_ = std::max<std::ptrdiff_t>(
        mass_stride_, (full_groups + quantized_groups + ceil_div(region_windows, kLanes)) * kLanes);
    most_full_groups = std::max(most_full_groups, full_groups);
    most_quantized_groups = std::max(most_quantized_groups, quantized_groups);
    if (want_mass_) {
      const std::size_t sums = want_heads_ ? cache.head_floats() : 1;
      unit.full.assign(cache.full().size() * sums, 0.0);
      unit.quantized.assign(cache.n_quantized() * sums, 0.0);
      unit.region.assign(region_windows * sums, 0.0);
    }
  }
  prefix_phases_.reserve(phases);
  for (int u = 0; u < cache_.units_per_layer(); ++u) fill_prefix_phases(layer, u);
  begin_queries(layer);
  if (materialised_) return note_peak();
  if (want_mass_ || select_needs_.mass) {
    const int items = mass_parts_ * g.n_kv_heads * ceil_div(max_block_, kPrefillTile);
    item_mass_.reserve(static_cast<std::size_t>(items) * g.group_size() * mass_stride_);
  }
  const std::size_t scratch = prefill_scratch_bytes(unit_geometry_, most_full_groups,
                                                    most_quantized_groups, n_rows_capacity_);
  scratch_stride_ = (scratch + 4095) / 4096 * 4096 + 64;
  thread_scratch_.reserve(scratch_stride_ * n_threads_);
  note_peak();
}

void TieredAttention::fill_prefix_phases(int layer, int u) {
  const LayerCache& cache = cache_.unit(layer, u);
  if (!uses_quantized(cache)) return;
  float* to = prefix_phases_.data() + unit_prompt_[u].phases_at;
  for (int r = 0; r < cache.n_rungs(); ++r) {
    const TierSlab& slab = cache.quantized(r);
    for (std::size_t i = 0; i < slab.groups().size(); ++i, to += geometry_.head_dim * kLanes) {
      kernels_.window_phases(cache_.phases(), slab.ids().data() + i * kLanes,
                             slab.groups()[i].lanes, to);
    }
  }
}

void TieredAttention::list_prefix(int layer, int u) {
  const LayerCache& cache = cache_.unit(layer, u);
  UnitPrompt& unit = unit_prompt_[u];
  unit.groups.clear();
  unit.geometries.clear();
  unit.columns.clear();
  for (int r = 0; r < cache.n_rungs() && uses_quantized(cache); ++r) {
    const TierSlab& slab = cache.quantized(r);
    for (SlotId slot = 0; slot < slab.size(); ++slot) {
      unit.columns.push_back(static_cast<int>(unit.groups.size()) * kLanes + slot);
    }
    unit.groups.insert(unit.groups.end(), slab.groups().begin(), slab.groups().end());
    unit.geometries.resize(unit.groups.size(), &slab.geometry());
  }
}

void TieredAttention::set_block(int first, int n) {
  QE_CHECK(n <= max_block_ && first + n <= n_new_);
  block_first_ = first;
  block_tokens_ = n;
  for (int i = 0; i < cache_.n_layers(); ++i) {
    progress_[i].claimed.store(0, std::memory_order_relaxed);
    progress_[i].finished.store(0, std::memory_order_relaxed);
  }
}

void TieredAttention::prepare_prompt(int layer, const QkvBlock& qkv, int ith, int nth) noexcept {
  const Geometry& g = geometry_;
  const int d = g.head_dim;
  const int pairs = d / 2;
  alignas(64) float row[1024];
  bool finite = true;
  for (int t = ith; t < qkv.n_tokens; t += nth) {
    const std::size_t angle = static_cast<std::size_t>(block_first_ + t) * pairs;
    float* q = q_.data() + static_cast<std::size_t>(t) * g.n_heads * d;
    const float* q_in = qkv.q + static_cast<std::size_t>(t) * g.n_heads * d;
    std::copy_n(q_in, g.n_heads * d, q);
    for (int h = 0; h < g.n_heads; ++h) {
      rope_rotate(cache_.rope(), &cos_[angle], &sin_[angle], 1.0F, q + h * d);
    }
    if (codec_) codec_->keep_probes(block_first_ + t, q);
    const int last = block_first_ + t - (n_new_ - n_last_);
    for (int h = 0; last >= 0 && h < g.n_heads; ++h) {
      std::copy_n(q + h * d, d,
                  q_last_.data() + (static_cast<std::size_t>(h) * n_last_ + last) * d);
    }
    const int r = n_prefix_rows_ + block_first_ + t;
    for (int h = 0; h < g.n_kv_heads; ++h) {
      const std::size_t in = (static_cast<std::size_t>(t) * g.n_kv_heads + h) * d;
      const std::size_t at = (static_cast<std::size_t>(h) * n_rows_capacity_ + r) * d;
      std::copy_n(qkv.k + in, d, row);
      rope_rotate(cache_.rope(), &cos_[angle], &sin_[angle], 1.0F, row);
      finite &= round_row(row, d, k_rows_.data() + at);
      finite &= round_row(qkv.v + in, d, v_rows_.data() + at);
      if (!extremes_.empty() && first_position_ + block_first_ + t >= range_from_) {
        add_head_extremes(g, 1, qkv.k + in, qkv.v + in, extremes_of(ith, h));
      }
    }
  }
  keep_queries(qkv, ith, nth);
  int none = -1;
  if (!finite) nonfinite_layer_.compare_exchange_strong(none, layer);
}

void TieredAttention::attend_prompt(int layer, float* out, int ith) noexcept {
  const int tiles = ceil_div(block_tokens_, kPrefillTile);
  const int items = materialised_ ? materialised_->prompt_items() : geometry_.n_kv_heads * tiles;
  Progress& progress = progress_[layer];
  // Last tiles first: they see the most keys, and the short ones then fill the gaps.
  for (int i = progress.claimed.fetch_add(1); i < items; i = progress.claimed.fetch_add(1)) {
    run_prompt_item(layer, items - 1 - i, out, ith);
    if (progress.finished.fetch_add(1, std::memory_order_acq_rel) == items - 1 &&
        (want_mass_ || select_needs_.mass)) {
      sum_prompt_mass(layer);
    }
  }
}

MaterialisedAttention::PromptBlock TieredAttention::prompt_block() const {
  return {q_.data(),
          block_tokens_,
          k_rows_.data(),
          v_rows_.data(),
          n_rows_capacity_,
          n_sink_rows_,
          n_prefix_rows_ + block_first_,
          std::clamp(first_mass_query(), 0, block_tokens_)};
}

void TieredAttention::run_prompt_item(int layer, int item, float* out, int ith) noexcept {
  if (materialised_) return materialised_->run_prompt_head(prompt_block(), item, out, ith);
  const Geometry& g = geometry_;
  const int kv_head = item % g.n_kv_heads;
  const int tile = item / g.n_kv_heads;
  const int u = unit_of(kv_head);
  const LayerCache& cache = cache_.unit(layer, u);
  const std::size_t rows = static_cast<std::size_t>(kv_head) * n_rows_capacity_ * g.head_dim;
  const std::ptrdiff_t first_head = std::ptrdiff_t{u} * unit_geometry_.n_heads * g.head_dim;
  PrefillParams p;
  p.geometry = &unit_geometry_;
  p.kv_head = kv_head % unit_geometry_.n_kv_heads;
  p.q = q_.data() + first_head;
  p.out = out + first_head;
  p.stride = std::ptrdiff_t{g.n_heads} * g.head_dim;
  p.scale = scale_;
  p.q_begin = tile * kPrefillTile;
  p.q_end = std::min(p.q_begin + kPrefillTile, block_tokens_);
  p.q_row0 = n_prefix_rows_ + block_first_;
  p.k_rows = k_rows_.data() + rows;
  p.v_rows = v_rows_.data() + rows;
  p.n_sink_rows = n_sink_rows_;
  p.full = cache.full().groups().data();
  p.n_full = static_cast<int>(cache.full().groups().size());
  if (uses_quantized(cache)) {
    const UnitPrompt& unit = unit_prompt_[u];
    p.quantized = unit.groups.data();
    p.n_quantized = static_cast<int>(unit.groups.size());
    p.quantized_geometry = unit.geometries.data();
    p.quantized_range = cache.range();
    p.phases = prefix_phases_.data() + unit.phases_at;
  }
  p.rope = &cache_.rope();
  p.power = power_;
  p.scratch = thread_scratch_.data() + scratch_stride_ * ith;
  if (!want_mass_ && !select_needs_.mass) return kernels_.prefill_tile(p);
  // A query's bits do not depend on its tile, so that the item may be cut.
  p.mass_stride = mass_stride_;
  for (int part = 0; part < 2; ++part) {
    const auto [begin, end] = item_queries(item, part);
    if (begin == end) continue;
    p.q_begin = begin;
    p.q_end = end;
    p.mass = part == 1 || want_heads_ ? item_sums(item, part) : nullptr;
    kernels_.prefill_tile(p);
  }
}

std::pair<int, int> TieredAttention::item_queries(int item, int part) const {
  const int begin = item / geometry_.n_kv_heads * kPrefillTile;
  const int end = std::min(begin + kPrefillTile, block_tokens_);
  const int first = want_heads_ ? n_new_ - kRecentPromptRows - block_first_ : first_mass_query();
  const int cut = std::clamp(first, begin, end);
  return part == 0 ? std::pair{begin, cut} : std::pair{cut, end};
}

float* TieredAttention::item_sums(int item, int part) const {
  const std::size_t at = static_cast<std::size_t>(item) * mass_parts_ + (want_heads_ ? part : 0);
  return item_mass_.data() + at * geometry_.group_size() * mass_stride_;
}

int TieredAttention::first_mass_query() const {
  return mass_rows_ > 0 ? n_new_ - mass_rows_ - block_first_ : 0;
}

// Adds the items' column sums in item order: the same bits whoever computed them.
void TieredAttention::sum_prompt_mass(int layer) noexcept {
  if (materialised_) {
    UnitPrompt& unit = unit_prompt_[0];
    return materialised_->add_prompt_mass(layer, prompt_block(), unit.full, unit.quantized,
                                          unit.region);
  }
  const int tiles = ceil_div(block_tokens_, kPrefillTile);
  for (int item = 0; item < geometry_.n_kv_heads * tiles; ++item) {
    for (int part = want_heads_ ? 0 : 1; part < 2; ++part) add_item_mass(layer, item, part);
  }
}

void TieredAttention::add_item_mass(int layer, int item, int part) noexcept {
  const auto [begin, end] = item_queries(item, part);
  if (begin == end) return;
  const int gs = geometry_.group_size();
  const int kv_head = item % geometry_.n_kv_heads;
  const int u = unit_of(kv_head);
  UnitPrompt& unit = unit_prompt_[u];
  const std::size_t n_full = cache_.unit(layer, u).full().groups().size() * kLanes;
  const int rows = n_prefix_rows_ + block_first_ + end - n_sink_rows_;
  const int region = rows > 0 ? ceil_div(rows, geometry_.window) : 0;
  const double mean = want_heads_ ? 1.0 : 1.0 / unit_geometry_.n_heads;
  const std::size_t sums = want_heads_ ? head_record_floats(unit_geometry_.n_heads) : 1;
  for (int h = 0; h < gs; ++h) {
    const float* mass = item_sums(item, part) + h * mass_stride_;
    const float* region_mass = mass + n_full + unit.groups.size() * kLanes;
    if (select_needs_.mass) {
      std::vector<double>& of_head = head_mass_[static_cast<std::size_t>(kv_head) * gs + h];
      const auto held = static_cast<std::size_t>(cache_.unit(layer, u).full().size());
      for (std::size_t w = 0; w < held; ++w) of_head[w] += mass[w];
      for (int w = 0; w < region; ++w) of_head[held + w] += region_mass[w];
    }
    if (observer_ != nullptr) observe_prompt(layer, kv_head, h, mass, region);
    if (!want_mass_) continue;
    // Which of a window's sums this head's is.
    const std::size_t at =
        want_heads_ ? part * unit_geometry_.n_heads + kv_head % unit_geometry_.n_kv_heads * gs + h
                    : 0;
    for (std::size_t w = 0; w * sums < unit.full.size(); ++w) {
      unit.full[w * sums + at] += mean * mass[w];
    }
    for (std::size_t w = 0; w < unit.columns.size(); ++w) {
      unit.quantized[w * sums + at] += mean * mass[n_full + unit.columns[w]];
    }
    for (int w = 0; w < region; ++w) unit.region[w * sums + at] += mean * region_mass[w];
  }
}

const TieredAttention::PromptLayer& TieredAttention::prompt_layer() {
  PromptRows& rows = prompt_layer_.rows;
  rows.k = k_rows_.data();
  rows.v = v_rows_.data();
  rows.capacity = n_rows_capacity_;
  rows.n_rows = n_rows_capacity_;
  rows.n_sink_rows = n_sink_rows_;
  rows.region_begin = region_begin_;
  for (int i = 1; i < n_threads_ && !extremes_.empty(); ++i) {
    for (int h = 0; h < geometry_.n_kv_heads; ++h) {
      merge_head_extremes(geometry_, extremes_of(i, h), extremes_of(0, h));
    }
  }
  rows.extremes = extremes_.empty() ? nullptr : extremes_.data();
  prompt_layer_.mass.clear();
  for (const UnitPrompt& unit : unit_prompt_) {
    prompt_layer_.mass.push_back({unit.full, unit.quantized, unit.region});
  }
  finish_queries();
  if (codec_) prompt_layer_.queries.probes = codec_->probes();
  return prompt_layer_;
}

Status TieredAttention::finish_layer(int layer) {
  const PromptLayer& done = prompt_layer();
  return cache_.finish_prompt_layer(layer, done.rows, done.mass, done.queries);
}

void TieredAttention::end_prompt() {
  in_prompt_ = false;
  cos_ = {};
  sin_ = {};
  k_rows_.release();
  v_rows_.release();
  q_.release();
  prefix_phases_.release();
  item_mass_.release();
  thread_scratch_.release();
  q_last_.release();
  query_sum_ = {};
  query_products_ = {};
  head_mass_ = {};
  if (materialised_) materialised_->end_prompt();
  if (codec_) codec_->end_prompt();
}

}  // namespace qevict
