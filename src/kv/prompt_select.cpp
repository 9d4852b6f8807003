// Schedule::Once: a selector names the tokens that stay, right after the prompt.
#include "kv/prompt_select.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/check.h"
#include "kv/backup.h"
#include "kv/route_scratch.h"

namespace qevict {

PromptViewBuilder::PromptViewBuilder(const KvCache& cache, int layer, TokenPos n_tokens,
                                     const PromptRows& rows, const PromptQueries& queries)
    : queries_(queries), n_rows_(rows.n_rows) {
  const Geometry& g = cache.geometry();
  QE_CHECK(cache.per_head() && g.window == 1 && rows.n_sink_rows == 0);
  for (int u = 0; u < cache.units_per_layer(); ++u) {
    read_head(cache.unit(layer, u).full(), rows, static_cast<std::size_t>(u) * rows.capacity,
              static_cast<std::size_t>(g.head_dim));
  }
  for (const Head& head : heads_) {
    head_views_.push_back({head.positions, head.k.data(), head.v.data()});
  }
  view_.layer = layer;
  view_.n_layers = cache.n_layers();
  view_.n_heads = g.n_heads;
  view_.head_dim = g.head_dim;
  view_.scale = 1.0F / std::sqrt(static_cast<float>(g.head_dim));
  view_.n_tokens = n_tokens;
  view_.rope = &cache.rope();
  view_.heads = head_views_;
  view_.q_last = queries.q_last;
  view_.n_last = queries.n_last;
  view_.queries = queries.moments;
  if (cache.selector_needs().mass) add_mass();
}

void PromptViewBuilder::read_head(const TierSlab& full, const PromptRows& rows,
                                  std::size_t first_row, std::size_t d) {
  Head& head = heads_.emplace_back();
  const int n_full = full.size();
  for (SlotId slot = 0; slot < n_full; ++slot) head.order.push_back(slot);
  std::ranges::sort(head.order, {}, [&](SlotId slot) { return full.ids()[slot]; });
  const std::size_t n = static_cast<std::size_t>(n_full) + rows.n_rows;
  head.positions.reserve(n);
  head.k.resize(n * d);
  head.v.resize(n * d);
  const auto widen = [&](const fp16_t* from, float* to, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to[i] = fp16_to_fp32(from[i]);
  };
  std::vector<fp16_t> k(d), v(d);
  for (std::size_t i = 0; i < head.order.size(); ++i) {
    full.load_full(head.order[i], k.data(), v.data());
    head.positions.push_back(full.ids()[head.order[i]]);
    widen(k.data(), &head.k[i * d], d);
    widen(v.data(), &head.v[i * d], d);
  }
  const std::size_t from = first_row * d;
  const std::size_t to = head.order.size() * d;
  const std::size_t count = static_cast<std::size_t>(rows.n_rows) * d;
  widen(rows.k + from, head.k.data() + to, count);
  widen(rows.v + from, head.v.data() + to, count);
  for (int r = 0; r < rows.n_rows; ++r) head.positions.push_back(rows.region_begin + r);
}

void PromptViewBuilder::add_mass() {
  QE_CHECK(queries_.mass.size() == static_cast<std::size_t>(view_.n_heads));
  for (int h = 0; h < view_.n_heads; ++h) {
    const Head& head = heads_[static_cast<std::size_t>(h / view_.group_size())];
    const std::span<const double> sums = queries_.mass[static_cast<std::size_t>(h)];
    QE_CHECK(sums.size() == head.size());
    std::vector<double>& mass = mass_.emplace_back(sums.begin(), sums.end());
    for (std::size_t i = 0; i < head.order.size(); ++i) mass[i] = sums[head.order[i]];
  }
  mass_views_.assign(mass_.begin(), mass_.end());
  view_.mass = mass_views_;
}

Status PromptViewBuilder::add_value_norms(const ValueNorms& norms) {
  const bool rows_known = !queries_.value_norms.empty();
  for (int h = 0; h < view_.n_heads; ++h) {
    const Head& head = heads_[static_cast<std::size_t>(h / view_.group_size())];
    std::vector<float>& out = norms_.emplace_back(head.size());
    std::size_t wanted = head.size();
    if (rows_known) {
      const std::span<const float> known = queries_.value_norms[static_cast<std::size_t>(h)];
      QE_CHECK(known.size() == static_cast<std::size_t>(n_rows_));
      wanted = head.order.size();
      std::ranges::copy(known, out.begin() + static_cast<std::ptrdiff_t>(wanted));
    }
    if (wanted == 0) continue;
    if (!norms) {
      return runtime_error(
          "the policy needs the model's output projection (value norms), which this "
          "cache was not given");
    }
    if (Status s = norms(view_.layer, h, head.v.data(), static_cast<int>(wanted), out.data()); !s) {
      return s;
    }
  }
  norm_views_.assign(norms_.begin(), norms_.end());
  view_.value_norms = norm_views_;
  return {};
}

std::size_t PromptViewBuilder::bytes() const {
  std::size_t sum = 0;
  for (const Head& head : heads_) {
    sum += (head.k.size() + head.v.size()) * sizeof(float) +
           head.positions.size() * sizeof(TokenPos) + head.order.size() * sizeof(SlotId);
  }
  for (const auto& mass : mass_) sum += mass.size() * sizeof(double);
  for (const auto& norms : norms_) sum += norms.size() * sizeof(float);
  return sum;
}

bool KvCache::fits_unselected(int n_new) const {
  if (keeps_all()) return true;
  const std::int64_t rows = std::int64_t{units_.front().recent().n_tokens()} + n_new;
  std::int64_t held = 0;
  for (const LayerCache& unit : units_) held += unit.full().size() + rows;
  return held <= budget_.kept_tokens * static_cast<std::int64_t>(units_.size());
}

void KvCache::keep_tokens(int layer, int u, const std::vector<int>* kept, const PromptRows* rows,
                          LayerEvent* event) {
  LayerCache& cache = unit(layer, u);
  RouteScratch& s = *scratch_;
  LayerCache::Aged aged;
  aged.first = cache.ranked_windows();
  aged.count = rows == nullptr ? 0 : rows->n_rows;
  aged.rows = rows;
  cache.list_candidates(aged, false, false, s);
  s.plan.to.assign(s.candidates.size(), kept == nullptr ? Tier::Full : Tier::Evicted);
  int last = -1;
  for (const int i : kept == nullptr ? std::vector<int>() : *kept) {
    QE_CHECK(i > last && static_cast<std::size_t>(i) < s.candidates.size());
    s.plan.to[static_cast<std::size_t>(i)] = Tier::Full;
    last = i;
  }
  cache.apply(aged, s, event);
}

Status KvCache::select_prompt_layer(int layer, const PromptRows& rows,
                                    const PromptQueries& queries) {
  const auto start = std::chrono::steady_clock::now();
  const TokenPos n_tokens = n_tokens_ + backup_->n_new;
  const bool later = selector_->over_layers();
  const bool keep = backup_->keeps_all;
  KeptTokens kept(static_cast<std::size_t>(units_per_layer_));
  if (later) backup_->scores.resize(static_cast<std::size_t>(n_layers_));
  if (!keep) {
    PromptViewBuilder builder(*this, layer, n_tokens, rows, queries);
    if (selector_needs_.value_norms) {
      if (Status s = builder.add_value_norms(value_norms_); !s) return s;
    }
    backup_->select_bytes = std::max(backup_->select_bytes, builder.bytes());
    const int n_kept = static_cast<int>(budget_.kept_tokens);
    if (later) {
      selector_->score(builder.view(), n_kept, backup_->scores[static_cast<std::size_t>(layer)]);
    } else {
      selector_->select(builder.view(), n_kept, kept);
      QE_CHECK(kept.size() == static_cast<std::size_t>(units_per_layer_));
    }
  }
  for (int u = 0; u < units_per_layer_; ++u) {
    const PromptRows unit_rows = rows_of_unit(rows, u);
    LayerEvent event;
    const bool told = trace_ && !later;
    keep_tokens(layer, u, keep || later ? nullptr : &kept[static_cast<std::size_t>(u)], &unit_rows,
                told ? &event : nullptr);
    refill_prompt_unit(layer, u, unit_rows);
    if (told) {
      finish_event(layer, u, n_tokens, event);
      backup_->events.push_back(std::move(event));
    }
  }
  routing_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {};
}

void KvCache::select_over_layers() {
  const auto start = std::chrono::steady_clock::now();
  const TokenPos n_tokens = n_tokens_ + backup_->n_new;
  const bool keep = backup_->keeps_all;
  std::vector<KeptTokens> kept(static_cast<std::size_t>(n_layers_),
                               KeptTokens(static_cast<std::size_t>(units_per_layer_)));
  if (!keep) {
    selector_->select_over_layers(backup_->scores, static_cast<int>(budget_.kept_tokens), kept);
  }
  for (int i = 0; i < n_layers_ * units_per_layer_; ++i) {
    const int layer = i / units_per_layer_;
    const int u = i % units_per_layer_;
    LayerEvent event;
    keep_tokens(
        layer, u,
        keep ? nullptr : &kept[static_cast<std::size_t>(layer)][static_cast<std::size_t>(u)],
        nullptr, trace_ ? &event : nullptr);
    if (trace_) {
      finish_event(layer, u, n_tokens, event);
      backup_->events.push_back(std::move(event));
    }
  }
  routing_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace qevict
