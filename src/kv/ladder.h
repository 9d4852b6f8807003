// The precision ladder of the policy `qevict+`: its rungs, how many windows of each a byte budget
// holds, and which window goes to which rung. Pure functions (docs/qevict-plus.md).
//
// A rung is a number of bits and how the grids are stored. A layer may hold windows on several
// rungs; a window's bits only ever fall.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/geometry.h"

namespace qevict {

using RungId = std::int8_t;  // index into kRungs
inline constexpr int kMaxRungs = 4;
// Not on a rung: still in fp16 (in Full, or just out of the local zone).
inline constexpr RungId kUnquantised = -1;
// Where a plan sends a window that is evicted.
inline constexpr RungId kNoRung = -2;

struct Rung {
  int bits;
  GridFormat key_grid, value_grid;
};
// From the most bits to the fewest. With 2 and 3 bits a grid's ends need no more than 4 bits; with
// more they would be the largest error.
inline constexpr std::array<Rung, kMaxRungs> kRungs = {{
    {8, GridFormat::U8, GridFormat::U8},
    {4, GridFormat::U8, GridFormat::U8},
    {3, GridFormat::U4, GridFormat::U8},
    {2, GridFormat::U4, GridFormat::U8},
}};

// The rung with so many bits; kNoRung when there is none.
RungId rung_of_bits(int bits);
// g with the rung's codes and grids.
Geometry rung_geometry(const Geometry& g, RungId rung);
// Bytes of one window of all KV heads.
std::int64_t rung_window_bytes(const Geometry& g, RungId rung);
// The super-ranges that all rungs of a layer share, in bytes.
std::int64_t ladder_range_bytes(const Geometry& g);
// Whether the window's rows of codes fill whole bytes on this rung.
bool rung_fits(const Geometry& g, RungId rung);

// What one layer may hold: so many windows of each rung, or bytes that its windows share.
struct LadderQuota {
  std::array<std::int64_t, kMaxRungs> n{};
  std::int64_t bytes = -1;  // not negative: precisions by expected loss (ladder_loss.h), without n
  std::array<std::int64_t, kMaxRungs> window_bytes{};  // with bytes
  std::int64_t total() const;
  friend bool operator==(const LadderQuota&, const LadderQuota&) = default;
};

// Bytes of one layer for history windows and their super-ranges: what sinks, n_local local tokens
// and `reserved` more leave of total_tokens.
std::int64_t ladder_free_bytes(const Geometry& g, std::int64_t total_tokens, int n_sink,
                               int n_local, std::int64_t reserved);
// The local zone holds up to window - 1 tokens beyond n_local after an event: windows longer than 8
// leave as much less, shorter ones as much more, so that the peak does not depend on the window.
inline std::int64_t ladder_window_tokens(const Geometry& g) { return g.window - 8; }

// A layer's part of the bytes, 1 on average: late layers get more, early ones less, in a line by
// depth, up to a fifth of the context the more so the smaller the budget is (`kept`: its share of
// the context, above 0):
//   1 + tilt (2 layer / (n_layers - 1) - 1),   tilt = 0.3 log2(0.8 / kept), 0 to 0.6
double ladder_layer_share(double kept, int layer, int n_layers);

// History windows that a context of that many tokens can have at its last step.
std::int64_t ladder_windows(std::int64_t context_tokens, int n_sink, int n_local, int window);

// The rung or rungs that the bytes are spent on. All n_windows in INT4 where they fit, and the best
// of them in INT8; else as many as fit in INT3 where that is three quarters of them; else INT2.
// bits: 0, or the only rung to use.
LadderQuota ladder_quota(const Geometry& g, std::int64_t free_bytes, std::int64_t n_windows,
                         int bits = 0);

// The bytes for precisions by expected loss.
LadderQuota ladder_bytes(const Geometry& g, std::int64_t free_bytes);

// One window's way from a rung to a higher one.
struct LadderStep {
  double gain;  // by which the expected loss falls, for each byte
  std::int32_t window;
  RungId to;
  std::int64_t bytes;
};

// The result of plan_ladder(), with storage that a plan used again does not allocate anew.
struct LadderPlan {
  std::vector<RungId> to;           // parallel to the candidates; kNoRung = evicted
  std::vector<std::int32_t> order;  // scratch
  std::vector<LadderStep> steps;    // scratch
};

// Rungs from high to low take the best of the candidates that are stored in at least their bits
// (stored: kUnquantised or a rung); the lowest one takes any, and leaves those with fewer bits as
// they are. Slots that a rung cannot fill are the next one's. The rest is evicted. Larger scores
// are better, ties go to the lower index, NaN ranks last. With quota.bytes: plan_by_loss().
void plan_ladder(std::span<const RungId> stored, std::span<const float> scores,
                 const LadderQuota& quota, LadderPlan& plan);

}  // namespace qevict
