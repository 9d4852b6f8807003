#include "kv/router.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace qevict {
namespace {

using Order = std::vector<std::int32_t>;

// Moves the best `count` indices of order[begin..] to its front and gives them a tier; returns the
// first index after them.
std::size_t select(std::span<const WindowView> candidates, std::span<const float> scores,
                   Order& order, std::size_t begin, std::int64_t count, Tier tier,
                   std::vector<Tier>& to) {
  const auto rank = [&](std::int32_t i) {
    return std::isnan(scores[i]) ? -std::numeric_limits<float>::infinity() : scores[i];
  };
  const auto better = [&](std::int32_t a, std::int32_t b) {
    const float x = rank(a);
    const float y = rank(b);
    if (x != y) return x > y;
    // Minus infinity is still a number: it ranks before NaN.
    const bool nan_a = std::isnan(scores[a]);
    const bool nan_b = std::isnan(scores[b]);
    if (nan_a != nan_b) return nan_b;
    return candidates[a].id < candidates[b].id;
  };
  const auto available = static_cast<std::int64_t>(order.size() - begin);
  const std::size_t end =
      begin + static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, available));
  if (end > begin && end < order.size()) {
    std::nth_element(order.begin() + static_cast<std::ptrdiff_t>(begin),
                     order.begin() + static_cast<std::ptrdiff_t>(end), order.end(), better);
  }
  for (std::size_t i = begin; i < end; ++i) to[order[i]] = tier;
  return end;
}

}  // namespace

void RoutingPlan::take(const LadderPlan& ladder) {
  to.resize(ladder.to.size());
  rung = ladder.to;
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = rung[i] == kNoRung ? Tier::Evicted : Tier::Quantized;
  }
}

void plan_routing(std::span<const WindowView> candidates, std::span<const float> scores,
                  const TierQuota& quota, const RoutingRules& rules, RoutingPlan& plan) {
  QE_CHECK(candidates.size() == scores.size());
  const auto n = static_cast<std::int32_t>(candidates.size());
  const auto may_be_full = [&](std::int32_t i) {
    return rules.promotion || candidates[i].tier != Tier::Quantized;
  };
  plan.to.assign(candidates.size(), Tier::Evicted);
  plan.rung.clear();
  plan.order.clear();
  plan.order.reserve(candidates.size());
  for (std::int32_t i = 0; i < n; ++i) {
    if (may_be_full(i)) plan.order.push_back(i);
  }
  const std::size_t rest =
      select(candidates, scores, plan.order, 0, quota.n_full, Tier::Full, plan.to);
  for (std::int32_t i = 0; i < n; ++i) {
    if (!may_be_full(i)) plan.order.push_back(i);
  }
  select(candidates, scores, plan.order, rest, quota.n_quantized, Tier::Quantized, plan.to);
}

}  // namespace qevict
