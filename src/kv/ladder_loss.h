// Precisions by expected loss: how the policy `qevict+` shares a layer's bytes out among its
// windows (docs/qevict-plus.md). A pure function.
//
// A window that gets the share s of the attention disturbs the output by about s times the relative
// error of what it is stored as, and errors of many windows add up in squares:
//
//   loss(window on rung r) = s^2 kRungLoss[r]          loss(evicted) = s^2
//
// Rungs are climbed where a byte lowers the sum of losses most, until the bytes are spent: the
// greedy walk along the lower convex hull of (bytes, loss), which is optimal up to the last step.
// Few windows that hold all the attention get many bits; where it is spread, more windows get
// fewer.
#pragma once

#include <array>
#include <span>

#include "kv/ladder.h"

namespace qevict {

// Squared relative errors of an output read through a rung's codes.
inline constexpr std::array<double, kMaxRungs> kRungLoss = {1e-5, 6e-4, 4e-3, 3e-2};

// plan.to: what plan_ladder() describes, with quota.bytes in place of slots. Of equal scores the
// lower index climbs first; NaN climbs last.
void plan_by_loss(std::span<const RungId> stored, std::span<const float> scores,
                  const LadderQuota& quota, LadderPlan& plan);

}  // namespace qevict
