// A routing event of one unit.
#include <algorithm>
#include <chrono>

#include "kv/kv_cache.h"
#include "kv/route_scratch.h"

namespace qevict {

void KvCache::route_unit(int layer, int u, TokenPos n_tokens, const PromptRows* rows,
                         LayerEvent* event) {
  const auto start = std::chrono::steady_clock::now();
  LayerCache& cache = unit(layer, u);
  RouteScratch& s = *scratch_;
  // After an append whose n_local grew, windows that are ranked already stay ranked.
  const std::int64_t evictable = evictable_windows(n_tokens, config_.n_sink, budget_.n_local,
                                                   geometry_.window, config_.local_rule);
  LayerCache::Aged aged;
  aged.first = cache.ranked_windows();
  aged.count = static_cast<int>(std::max<std::int64_t>(0, evictable - aged.first));
  aged.rows = rows;
  if (keeps_all()) {
    cache.list_candidates(aged, true, needs_.key_norm, s);
    s.plan.to.assign(s.candidates.size(), Tier::Full);
    s.plan.rung.clear();
    const bool stay = !config_.promotion || policy_->ladder;
    for (std::size_t i = 0; i < s.candidates.size() && stay; ++i) {
      if (s.candidates[i].tier == Tier::Quantized) s.plan.to[i] = Tier::Quantized;
      if (policy_->ladder) s.plan.rung.push_back(s.candidates[i].rung);
    }
  } else {
    cache.list_candidates(aged, false, needs_.key_norm, s);
    s.scores.resize(s.candidates.size());
    LayerView view{layer, n_layers(), n_tokens, s.candidates};
    if (needs_.head_sums) view.heads = cache.head_view(aged, s);
    scorer_->score(view, s.scores);
    if (policy_->ladder) {
      plan_ladder(s.stored, s.scores, allocator_->ladder(budget_, layer, n_layers()), s.ladder);
      s.plan.take(s.ladder);
    } else {
      plan_routing(s.candidates, s.scores, allocator_->quota(budget_, layer, n_layers()),
                   {config_.promotion}, s.plan);
    }
    if (event != nullptr) {
      for (std::size_t i = 0; i < s.candidates.size(); ++i) {
        event->scores.emplace_back(s.candidates[i].id, s.scores[i]);
      }
    }
  }
  cache.apply(aged, s, event);
  routing_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void KvCache::finish_event(int layer, int u, TokenPos n_tokens, LayerEvent& event) {
  const LayerCache& cache = unit(layer, u);
  const auto ascending = [](std::span<const WindowId> ids) {
    std::vector<WindowId> sorted(ids.begin(), ids.end());
    std::ranges::sort(sorted);
    return sorted;
  };
  event.event = event_;
  event.step = step_;
  event.layer = layer;
  event.head = per_head_ ? u : -1;
  event.n_tokens = n_tokens;
  event.full = ascending(cache.full_.ids());
  for (int r = 0; r < cache.n_rungs(); ++r) {
    const std::span<const WindowId> ids = cache.quantized(r).ids();
    event.quantized.insert(event.quantized.end(), ids.begin(), ids.end());
    if (cache.ladder()) event.rungs[r] = ascending(ids);
  }
  std::ranges::sort(event.quantized);
  event.dormant = cache.ledger_.windows();
  event.bytes = cache.bytes();
  event.dormant_bytes = cache.ledger_.block_bytes();
}

}  // namespace qevict
