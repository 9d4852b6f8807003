#include "engine/run_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>
#include <string>

namespace qevict {

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const std::size_t below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

CacheStats collect_stats(const KvCache& cache, std::size_t workspace_peak_bytes) {
  CacheStats s;
  const TierBytes bytes = cache.bytes();
  const MetadataBytes metadata = cache.metadata();
  s.budget_bytes = cache.budget().budget_bytes;
  s.resident_bytes = static_cast<std::int64_t>(bytes.total());
  s.peak_resident_bytes = static_cast<std::int64_t>(cache.peak_bytes());
  s.n_layers = cache.n_layers();
  s.n_tokens = cache.n_tokens();
  s.full_cache_bytes =
      static_cast<std::int64_t>(cache.geometry().token_bytes()) * s.n_tokens * s.n_layers;
  s.reserved_bytes = static_cast<std::int64_t>(cache.reserved_bytes());
  s.sink_bytes = static_cast<std::int64_t>(bytes.sink);
  s.local_bytes = static_cast<std::int64_t>(bytes.local);
  s.full_bytes = static_cast<std::int64_t>(bytes.full);
  s.quantized_bytes = static_cast<std::int64_t>(bytes.quantized);
  s.positions_bytes = static_cast<std::int64_t>(metadata.positions);
  s.ledger_bytes = static_cast<std::int64_t>(metadata.ledger);
  s.dormant_bytes = static_cast<std::int64_t>(metadata.dormant);
  s.scores_bytes = static_cast<std::int64_t>(metadata.scores);
  s.workspace_peak_bytes = static_cast<std::int64_t>(workspace_peak_bytes);
  for (int i = 0; i < cache.n_layers(); ++i) {
    for (int u = 0; u < cache.units_per_layer(); ++u) {
      const LayerCache& unit = cache.unit(i, u);
      s.full_windows += unit.full().size();
      s.quantized_windows += unit.n_quantized();
      s.rungs.resize(unit.ladder() ? unit.n_rungs() : 0);
      for (int r = 0; r < static_cast<int>(s.rungs.size()); ++r) {
        s.rungs[r].bits = unit.quantized(r).geometry().quant_bits;
        s.rungs[r].windows += unit.quantized(r).size();
      }
      s.evicted_windows += unit.n_evicted();
    }
  }
  s.budget_raised = cache.budget().raised;
  s.over_budget = cache.budget().over_budget;
  s.uncompressed = cache.budget().uncompressed;
  const CacheCounters counters = cache.counters();
  s.events = counters.events;
  s.promotions = counters.promotions;
  s.demotions = counters.demotions;
  s.first_demotions = counters.first_demotions;
  s.evictions = counters.evictions;
  s.reactivations = counters.reactivations;
  s.lowerings = counters.lowerings;
  return s;
}

double log_sum_exp(std::span<const float> logits) {
  const double max = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(x - max);
  return std::log(sum) + max;
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int k) {
  const int n = static_cast<int>(logits.size());
  k = std::min(k, n);
  const double log_sum = log_sum_exp(logits);
  std::vector<TokenId> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](TokenId a, TokenId b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  std::vector<TokenLogprob> top(k);
  for (int i = 0; i < k; ++i) top[i] = {order[i], logits[order[i]] - log_sum};
  return top;
}

namespace {

// A field of /proc/self/status in bytes; 0 where the system has none.
std::int64_t status_field(const char* name) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.compare(0, std::strlen(name), name) == 0) {
      long long kib = 0;
      if (std::sscanf(line.c_str() + std::strlen(name), " %lld", &kib) == 1) return kib * 1024;
    }
  }
  return 0;
}

}  // namespace

std::int64_t resident_set_bytes() { return status_field("VmRSS:"); }
std::int64_t peak_resident_set_bytes() { return status_field("VmHWM:"); }

}  // namespace qevict
