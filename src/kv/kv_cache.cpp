#include "kv/kv_cache.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "base/check.h"
#include "kernels/codec.h"
#include "kv/backup.h"
#include "kv/route_scratch.h"

namespace qevict {
namespace {

Status check_shape(const Geometry& g, int n_layers, const RopeSpec& rope) {
  const auto refuse = [](const std::string& what, long long value, const std::string& todo) {
    return bad_input(std::to_string(value) + " (" + what + "): " + todo);
  };
  if (n_layers < 1) return refuse("layers", n_layers, "a cache needs at least one layer");
  if (g.n_kv_heads < 1 || g.n_heads < 1 || g.n_heads % g.n_kv_heads != 0) {
    return refuse("query heads", g.n_heads,
                  "use a multiple of the " + std::to_string(g.n_kv_heads) + " KV heads");
  }
  if (g.head_dim < 8 || g.head_dim > kMaxHeadDim || g.head_dim % 4 != 0) {
    return refuse("head_dim", g.head_dim,
                  "use a multiple of 4 from 8, at most " + std::to_string(kMaxHeadDim));
  }
  if (g.window < 1 || g.window > kMaxWindow) {
    return refuse("window", g.window, "use 1 to " + std::to_string(kMaxWindow) + " tokens");
  }
  if (rope.head_dim != g.head_dim ||
      rope.inv_freq.size() != static_cast<std::size_t>(g.head_dim) / 2) {
    return refuse("rope head_dim", rope.head_dim,
                  "use the cache's head_dim, " + std::to_string(g.head_dim));
  }
  return {};
}

Status check_quantizer(const Geometry& g) {
  if (g.window % 4 != 0) {
    return bad_input(std::to_string(g.window) +
                     " (window): use a multiple of 4, or quant_share 0 for no Quantized tier");
  }
  if (!g.codes_fit()) {
    return bad_input(std::to_string(g.quant_bits) +
                     " (quant_bits): a row of codes must fill whole bytes; use another window");
  }
  return {};
}

Status check_ladder(const Geometry& g) {
  for (RungId rung = 0; rung < kMaxRungs; ++rung) {
    if (rung_fits(g, rung)) continue;
    return bad_input(std::to_string(g.window) +
                     " (window): a ladder's rows of codes must fill whole bytes; use a multiple "
                     "of 8");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<KvCache>> KvCache::create(const Geometry& geometry, int n_layers,
                                                 const RopeSpec& rope, const CacheConfig& config,
                                                 const PolicySpec& policy) {
  if (Status ok = config.validate(); !ok) return std::unexpected(ok.error());
  if (Status ok = check_shape(geometry, n_layers, rope); !ok) return std::unexpected(ok.error());
  if (geometry.window != config.window || geometry.quant_bits != config.quant_bits) {
    return bad_input(std::to_string(geometry.window) +
                     " (window): the geometry must have the configured window and quant_bits");
  }
  const bool never = policy.schedule == Schedule::Never;
  if (policy.ladder) {
    if (Status ok = check_ladder(geometry); !ok) return std::unexpected(ok.error());
  } else if (!never && config.quant_share > 0.0) {
    if (Status ok = check_quantizer(geometry); !ok) return std::unexpected(ok.error());
  }
  const bool once = policy.schedule == Schedule::Once;
  if (once && (config.window != 1 || config.n_sink != 0 || config.n_local != 0 ||
               config.local_share != 0.0 || config.quant_share != 0.0)) {
    return bad_input(policy.name +
                     " (policy): chooses single tokens of the whole prompt; use window 1 without "
                     "sinks, local tokens and Quantized tier (configure_policy)");
  }
  const bool per_head = policy.per_head || once;
  if (per_head && !config.fused_attention) {
    return bad_input(policy.name +
                     " (policy): routes by KV head, which works with fused attention only; use "
                     "--attention fused");
  }
  if (policy.ladder && !config.fused_attention) {
    return bad_input(policy.name +
                     " (policy): works with fused attention only; use --attention "
                     "fused");
  }
  std::unique_ptr<KvCache> cache(new KvCache());
  cache->geometry_ = geometry;
  cache->unit_geometry_ = geometry;
  cache->n_layers_ = n_layers;
  cache->per_head_ = per_head;
  if (per_head) {
    cache->units_per_layer_ = geometry.n_kv_heads;
    cache->unit_geometry_.n_heads = geometry.group_size();
    cache->unit_geometry_.n_kv_heads = 1;
  }
  cache->rope_ = rope;
  cache->config_ = config;
  cache->policy_ = &policy;
  if (once) {
    cache->selector_ = policy.make_selector(config);
    cache->selector_needs_ = cache->selector_->needs();
  } else {
    cache->scorer_ = policy.make_scorer(config);
    cache->allocator_ = policy.make_allocator(config);
    cache->needs_ = cache->scorer_->needs();
  }
  // apply() reads these by pointer: sized once. The codec's part may be unused.
  cache->scratch_ = std::make_shared<RouteScratch>();
  const Geometry& unit = cache->unit_geometry_;
  const std::size_t elements =
      static_cast<std::size_t>(unit.n_kv_heads) * unit.window * unit.head_dim;
  cache->scratch_->k.resize(elements);
  cache->scratch_->v.resize(elements);
  const std::size_t block =
      std::max<std::size_t>(unit.quantized_window_bytes(),
                            policy.ladder ? rung_geometry(unit, 0).quantized_window_bytes() : 0);
  cache->scratch_->block.resize(2 * block);
  if (cache->needs_.head_sums) {
    cache->scratch_->head_inverse.resize(std::size_t{kHeadSignals} * unit.n_heads);
  }
  cache->scratch_->floats.resize(quantize_scratch_floats(unit));
  const int n_units = n_layers * cache->units_per_layer_;
  cache->units_.reserve(static_cast<std::size_t>(n_units));
  for (int i = 0; i < n_units; ++i) {
    cache->units_.emplace_back(cache->unit_geometry_, cache->rope_, config.n_sink, policy.ladder,
                               cache->needs_.head_sums);
  }
  for (int i = 0; i < n_layers && policy.make_codec; ++i) {
    cache->codecs_.add(policy.make_codec({geometry, &cache->rope_, &cache->phases_}, config));
  }
  return cache;
}

bool KvCache::keeps_all() const {
  return budget_.uncompressed || policy_->schedule == Schedule::Never;
}

int KvCache::max_local(const LayerCache& layer, TokenPos n_tokens) const {
  if (selects()) return static_cast<int>(budget_.context_tokens - n_tokens);
  const std::int64_t steady =
      budget_.n_local + local_remainder(n_tokens, config_.n_sink, budget_.n_local, geometry_.window,
                                        config_.local_rule);
  const std::int64_t now = std::max(0, n_tokens - layer.local_begin());
  return static_cast<int>(std::max(steady, now) + geometry_.window);
}

Status KvCache::begin_prompt(int n_new, int max_new_tokens) {
  QE_CHECK(!backup_);
  if (n_new < 1) return bad_input(std::to_string(n_new) + " (prompt tokens): give at least one");
  const std::int64_t n_positions = std::int64_t{n_tokens_} + n_new;
  // Checks the limits of the context also for a policy without a budget.
  CacheConfig limits = config_;
  const bool never = policy_->schedule == Schedule::Never;
  if (never) limits.budget = {KvBudget::Unit::Ratio, 1.0};
  auto plan = solve_budget(geometry_, n_layers(), limits, n_positions, max_new_tokens);
  if (!plan) return std::unexpected(plan.error());
  if (selects()) plan_selection(*plan, max_new_tokens, selector_->smallest_budget());

  // Everything that may run out of memory comes before the first change.
  auto backup = std::make_shared<Backup>();
  backup->n_new = n_new;
  backup->empty_before = n_tokens_ == 0;
  backup->budget = budget_;
  backup->step = step_;
  backup->units.resize(units_.size());
  codecs_.begin_prompt();
  const auto windows = static_cast<int>(
      std::max<std::int64_t>(1, (plan->context_tokens - config_.n_sink) / geometry_.window + 1));
  if (!codecs_.empty()) {
    plan->uncompressed = false;  // the budget does not matter
    if (plan->context_tokens > phases_.max_windows()) {
      phases_ = WindowPhases(rope_, 0, 1, static_cast<int>(plan->context_tokens));
    }
  } else if (windows > phases_.max_windows()) {
    phases_ = WindowPhases(rope_, config_.n_sink, geometry_.window, windows);
  }
  backup_ = std::move(backup);
  budget_ = *plan;
  step_ = 0;
  if (selects()) backup_->keeps_all = fits_unselected(n_new);
  return {};
}

PromptRows KvCache::rows_of_unit(const PromptRows& rows, int u) const {
  const std::ptrdiff_t offset = static_cast<std::ptrdiff_t>(u) * unit_geometry_.n_kv_heads *
                                rows.capacity * geometry_.head_dim;
  PromptRows unit = rows;
  unit.k += offset;
  unit.v += offset;
  if (rows.extremes != nullptr) {
    unit.extremes += u * unit_geometry_.n_kv_heads * head_extreme_floats(geometry_);
  }
  return unit;
}

Status KvCache::finish_prompt_layer(int layer, const PromptRows& rows,
                                    std::span<const PromptMass> mass,
                                    const PromptQueries& queries) {
  QE_CHECK(backup_ && layer >= 0 && layer < n_layers());
  if (!codecs_.empty()) {
    finish_codec_layer(layer, {rows.k, rows.v, rows.capacity, rows.n_rows}, queries.probes);
    return {};
  }
  QE_CHECK(mass.size() == static_cast<std::size_t>(units_per_layer_));
  for (int u = 0; u < units_per_layer_; ++u) {
    begin_prompt_unit(layer, u, rows_of_unit(rows, u), mass[u]);
  }
  if (selects()) {
    if (Status s = select_prompt_layer(layer, rows, queries); !s) return s;
  } else {
    for (int u = 0; u < units_per_layer_; ++u) {
      route_prompt_unit(layer, u, rows_of_unit(rows, u));
    }
  }
  peak_bytes_ = std::max(peak_bytes_, bytes().total());
  return {};
}

void KvCache::begin_prompt_unit(int layer, int u, const PromptRows& rows, const PromptMass& mass) {
  LayerCache& cache = unit(layer, u);
  const TokenPos n_tokens = n_tokens_ + backup_->n_new;
  const int n_region = std::max(0, n_tokens - cache.local_begin_);
  QE_CHECK(rows.n_sink_rows == std::min(config_.n_sink, n_tokens));
  QE_CHECK(rows.n_rows == rows.n_sink_rows + n_region && rows.n_rows <= rows.capacity);
  QE_CHECK(n_region == 0 || rows.region_begin == cache.local_begin_);
  if (!backup_->empty_before) {
    // The copy is worked on: what a rollback puts back is the original, with the room it had.
    LayerCache copy(cache);
    backup_->units[unit_index(layer, u)].emplace(std::move(cache));
    cache = std::move(copy);
  }
  const int omega = geometry_.window;
  cache.add_prompt_mass(mass, needs_.mass_decay, (n_region + omega - 1) / omega);
  if (cache.ladder() && rows.extremes != nullptr) cache.range_.widen(rows.extremes);
}

void KvCache::route_prompt_unit(int layer, int u, const PromptRows& rows) {
  const TokenPos n_tokens = n_tokens_ + backup_->n_new;
  LayerEvent event;
  route_unit(layer, u, n_tokens, &rows, trace_ ? &event : nullptr);
  refill_prompt_unit(layer, u, rows);
  if (trace_) {
    finish_event(layer, u, n_tokens, event);
    backup_->events.push_back(std::move(event));
  }
}

void KvCache::refill_prompt_unit(int layer, int u, const PromptRows& rows) {
  LayerCache& cache = unit(layer, u);
  const TokenPos n_tokens = n_tokens_ + backup_->n_new;
  cache.refill_recent(rows, n_tokens, max_local(cache, n_tokens), budget_.context_tokens);
}

void KvCache::finish_codec_layer(int layer, const CodecRows& rows, const ProbeRows& probes) {
  QE_CHECK(backup_ && layer >= 0 && layer < n_layers());
  QE_CHECK(rows.n_rows == n_tokens_ + backup_->n_new && rows.n_rows <= rows.capacity);
  const auto start = std::chrono::steady_clock::now();
  codecs_.finish_layer(layer, rows, probes);
  peak_bytes_ = std::max(peak_bytes_, bytes().total());
  routing_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void KvCache::commit_prompt() {
  QE_CHECK(backup_);
  if (selects() && selector_->over_layers()) select_over_layers();
  codecs_.commit_prompt();
  n_tokens_ += backup_->n_new;
  ++event_;
  const std::shared_ptr<Backup> done = std::move(backup_);
  for (const LayerEvent& event : done->events) {
    if (trace_) trace_(event);
  }
}

void KvCache::rollback_prompt() {
  QE_CHECK(backup_);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (backup_->empty_before) {
      units_[i].clear();
    } else if (backup_->units[i]) {
      units_[i] = std::move(*backup_->units[i]);
    }
  }
  codecs_.rollback_prompt();
  budget_ = backup_->budget;
  step_ = backup_->step;
  backup_.reset();
}

void KvCache::begin_step() {
  QE_CHECK(!backup_ && n_tokens_ > 0 && n_tokens_ < budget_.context_tokens);
  codecs_.push_rows();
  for (LayerCache& unit : units_) {
    if (codecs_.empty()) unit.push_row();
  }
  ++n_tokens_;
}

void KvCache::append(int layer, int kv_head, const float* k, const float* v) {
  if (RowCodec* codec = codecs_.layer(layer)) return codec->write(kv_head, k, v);
  const int heads = unit_geometry_.n_kv_heads;
  RecentStore& recent = unit(layer, kv_head / heads).recent_;
  recent.write(recent.n_tokens() - 1, kv_head % heads, k, v);
}

void KvCache::end_step() {
  ++step_;
  peak_bytes_ = std::max(peak_bytes_, bytes().total());
  codecs_.end_step();
  if (selects() || step_ % geometry_.window != 0 || !codecs_.empty()) return;
  for (int i = 0; i < n_layers() * units_per_layer_; ++i) {
    const int layer = i / units_per_layer_;
    const int u = i % units_per_layer_;
    LayerEvent event;
    route_unit(layer, u, n_tokens_, nullptr, trace_ ? &event : nullptr);
    if (trace_) {
      finish_event(layer, u, n_tokens_, event);
      trace_(event);
    }
  }
  ++event_;
}

TierBytes KvCache::bytes() const {
  TierBytes sum = codecs_.bytes();
  for (const LayerCache& unit : units_) sum += unit.bytes();
  return sum;
}

MetadataBytes KvCache::metadata() const {
  MetadataBytes sum = codecs_.metadata();
  for (const LayerCache& unit : units_) sum += unit.metadata();
  return sum;
}

std::size_t KvCache::reserved_bytes() const {
  std::size_t sum = codecs_.reserved_bytes();
  for (const LayerCache& unit : units_) sum += unit.recent_.reserved_bytes();
  return sum;
}

std::size_t KvCache::backup_bytes() const {
  std::size_t sum = codecs_.backup_bytes();
  if (!backup_) return sum;
  sum += backup_->select_bytes;
  for (const auto& unit : backup_->units) {
    if (unit) {
      sum += unit->bytes().total() + unit->metadata().total() + unit->recent_.reserved_bytes();
    }
  }
  return sum;
}

CacheCounters KvCache::counters() const {
  CacheCounters sum;
  for (const LayerCache& unit : units_) sum += unit.counters();
  sum.events = event_;
  return sum;
}

}  // namespace qevict
