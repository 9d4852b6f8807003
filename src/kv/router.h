// Which windows stay, in which tier: pure functions (method.md section 5; vectors: routing.json).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/policy.h"
#include "kv/types.h"

namespace qevict {

// Intended tier of each candidate; parallel to the candidates.
struct RoutingPlan {
  std::vector<Tier> to;             // Full, Quantized or Evicted
  std::vector<RungId> rung;         // where Quantized has several rungs; else empty
  std::vector<std::int32_t> order;  // scratch of plan_routing
  void take(const LadderPlan& ladder);
};

struct RoutingRules {
  bool promotion = true;  // false: windows now in Quantized may not enter Full
};

// Full' = top n_full of the candidates by score, Quantized' = top n_quantized of the rest, the
// others are evicted. Ties: the lower window id wins. NaN scores rank last. Reuses the plan's
// storage, so that a plan used again allocates nothing.
void plan_routing(std::span<const WindowView> candidates, std::span<const float> scores,
                  const TierQuota& quota, const RoutingRules& rules, RoutingPlan& plan);

}  // namespace qevict
