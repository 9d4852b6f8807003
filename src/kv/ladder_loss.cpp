#include "kv/ladder_loss.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"

namespace qevict {
namespace {

// From one rung of a hull to the next one up.
struct Rise {
  RungId to;
  std::int64_t bytes;
  double gain;  // what a score of 1 loses less, for each byte; falls from rise to rise
};

// The lower convex hull of (bytes, loss) from Evicted to the most bits a window may have.
struct Hull {
  std::array<Rise, kMaxRungs> rises;
  int n = 0;
};

// top: the highest rung that is allowed.
Hull hull_to(RungId top, const std::array<std::int64_t, kMaxRungs>& bytes) {
  Hull hull;
  std::int64_t at_bytes = 0;
  double at_loss = 1.0;
  for (RungId from = kMaxRungs; from > top;) {
    Rise best{kNoRung, 0, 0.0};
    for (RungId to = from - 1; to >= top; --to) {
      const std::int64_t more = bytes[to] - at_bytes;
      const double gain = (at_loss - kRungLoss[to]) / static_cast<double>(more);
      if (gain > best.gain) best = {to, more, gain};
    }
    QE_CHECK(best.to != kNoRung);
    hull.rises[hull.n++] = best;
    at_bytes = bytes[best.to];
    at_loss = kRungLoss[best.to];
    from = best.to;
  }
  return hull;
}

bool before(const LadderStep& a, const LadderStep& b) {
  if (a.gain != b.gain) return a.gain > b.gain;
  if (a.to != b.to) return a.to > b.to;  // windows before bits
  return a.window < b.window;
}

// The first steps in their order whose bytes fit; returns where the rest begins.
std::vector<LadderStep>::iterator take_best(std::vector<LadderStep>& steps, std::int64_t bytes) {
  auto begin = steps.begin();
  auto end = steps.end();
  while (begin != end) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, before);
    std::int64_t sum = 0;
    for (auto step = begin; step <= middle; ++step) sum += step->bytes;
    if (sum <= bytes) {
      bytes -= sum;
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

}  // namespace

void plan_by_loss(std::span<const RungId> stored, std::span<const float> scores,
                  const LadderQuota& quota, LadderPlan& plan) {
  QE_CHECK(stored.size() == scores.size());
  std::array<Hull, kMaxRungs> hulls;
  for (RungId top = 0; top < kMaxRungs; ++top) hulls[top] = hull_to(top, quota.window_bytes);
  plan.to.assign(stored.size(), kNoRung);
  plan.steps.clear();
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const double score = std::isnan(scores[i]) ? -1.0 : std::max(0.0F, scores[i]);
    const Hull& hull = hulls[std::max<RungId>(stored[i], 0)];
    for (int k = 0; k < hull.n; ++k) {
      const Rise& rise = hull.rises[k];
      const double gain = score < 0.0 ? -1.0 : score * score * rise.gain;
      plan.steps.push_back({gain, static_cast<std::int32_t>(i), rise.to, rise.bytes});
    }
  }
  const auto rest = take_best(plan.steps, quota.bytes);
  // A window's steps are taken from the lowest rung up: the highest one counts.
  for (auto step = plan.steps.begin(); step != rest; ++step) {
    RungId& to = plan.to[step->window];
    to = to == kNoRung ? step->to : std::min(to, step->to);
  }
}

}  // namespace qevict
