#include "kv/ladder.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"
#include "kv/ladder_loss.h"

namespace qevict {
namespace {

constexpr RungId kInt8 = 0, kInt4 = 1, kInt3 = 2, kInt2 = 3;

// Whether candidate a ranks before b.
bool better(std::span<const float> scores, std::int32_t a, std::int32_t b) {
  const bool nan_a = std::isnan(scores[a]);
  const bool nan_b = std::isnan(scores[b]);
  if (nan_a != nan_b) return nan_b;
  if (!nan_a && scores[a] != scores[b]) return scores[a] > scores[b];
  return a < b;
}

RungId lowest_rung(const LadderQuota& quota) {
  for (RungId rung = kMaxRungs - 1; rung >= 0; --rung) {
    if (quota.n[rung] > 0) return rung;
  }
  return kNoRung;
}

}  // namespace

RungId rung_of_bits(int bits) {
  for (RungId rung = 0; rung < kMaxRungs; ++rung) {
    if (kRungs[rung].bits == bits) return rung;
  }
  return kNoRung;
}

Geometry rung_geometry(const Geometry& g, RungId rung) {
  QE_CHECK(rung >= 0 && rung < kMaxRungs);
  Geometry of = g;
  of.quant_bits = kRungs[rung].bits;
  of.key_grid = kRungs[rung].key_grid;
  of.value_grid = kRungs[rung].value_grid;
  return of;
}

std::int64_t rung_window_bytes(const Geometry& g, RungId rung) {
  return static_cast<std::int64_t>(rung_geometry(g, rung).quantized_window_bytes());
}

std::int64_t ladder_range_bytes(const Geometry& g) {
  return static_cast<std::int64_t>(rung_geometry(g, kInt2).range_bytes());
}

bool rung_fits(const Geometry& g, RungId rung) {
  return g.window % 4 == 0 && rung_geometry(g, rung).codes_fit();
}

std::int64_t LadderQuota::total() const {
  std::int64_t sum = 0;
  for (const std::int64_t count : n) sum += count;
  return sum;
}

std::int64_t ladder_free_bytes(const Geometry& g, std::int64_t total_tokens, int n_sink,
                               int n_local, std::int64_t reserved) {
  return std::max<std::int64_t>(0, total_tokens - n_sink - n_local - reserved) *
         static_cast<std::int64_t>(g.token_bytes());
}

double ladder_layer_share(double kept, int layer, int n_layers) {
  if (n_layers < 2 || kept <= 0.0) return 1.0;
  const double tilt = std::clamp(0.3 * std::log2(0.8 / kept), 0.0, 0.6);
  return 1.0 + tilt * (2.0 * layer / (n_layers - 1) - 1.0);
}

std::int64_t ladder_windows(std::int64_t context_tokens, int n_sink, int n_local, int window) {
  return std::max<std::int64_t>(0, context_tokens - 1 - n_sink - n_local) / window;
}

LadderQuota ladder_quota(const Geometry& g, std::int64_t free_bytes, std::int64_t n_windows,
                         int bits) {
  LadderQuota quota;
  const std::int64_t bytes = std::max<std::int64_t>(0, free_bytes - ladder_range_bytes(g));
  const auto as_many_as_fit = [&](RungId rung) {
    quota.n[rung] = std::min(n_windows, bytes / rung_window_bytes(g, rung));
    return quota;
  };
  if (bits != 0) return as_many_as_fit(rung_of_bits(bits));
  const std::int64_t low = rung_window_bytes(g, kInt4);
  if (bytes >= n_windows * low) {
    const std::int64_t high = rung_window_bytes(g, kInt8);
    quota.n[kInt8] = std::min(n_windows, (bytes - n_windows * low) / (high - low));
    quota.n[kInt4] = n_windows - quota.n[kInt8];
    return quota;
  }
  const bool most_fit = 4 * bytes >= 3 * n_windows * rung_window_bytes(g, kInt3);
  return as_many_as_fit(most_fit ? kInt3 : kInt2);
}

LadderQuota ladder_bytes(const Geometry& g, std::int64_t free_bytes) {
  LadderQuota quota;
  quota.bytes = std::max<std::int64_t>(0, free_bytes - ladder_range_bytes(g));
  for (RungId rung = 0; rung < kMaxRungs; ++rung) {
    quota.window_bytes[rung] = rung_window_bytes(g, rung);
  }
  return quota;
}

void plan_ladder(std::span<const RungId> stored, std::span<const float> scores,
                 const LadderQuota& quota, LadderPlan& plan) {
  QE_CHECK(stored.size() == scores.size());
  if (quota.bytes >= 0) return plan_by_loss(stored, scores, quota, plan);
  plan.to.assign(stored.size(), kNoRung);
  plan.order.resize(stored.size());
  for (std::size_t i = 0; i < stored.size(); ++i) plan.order[i] = static_cast<std::int32_t>(i);
  const RungId lowest = lowest_rung(quota);
  auto rest = plan.order.begin();
  std::int64_t slots = 0;
  for (RungId rung = 0; rung <= lowest; ++rung) {
    slots += quota.n[rung];
    if (quota.n[rung] == 0) continue;
    const auto may_enter = [&](std::int32_t i) { return rung == lowest || stored[i] <= rung; };
    const auto eligible = std::partition(rest, plan.order.end(), may_enter);
    const auto end = rest + std::min<std::ptrdiff_t>(slots, eligible - rest);
    if (end != rest && end != eligible) {
      std::nth_element(rest, end, eligible,
                       [&](std::int32_t a, std::int32_t b) { return better(scores, a, b); });
    }
    slots -= end - rest;
    for (; rest != end; ++rest) plan.to[*rest] = std::max(rung, stored[*rest]);
  }
}

}  // namespace qevict
