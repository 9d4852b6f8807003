// The attention kernels: one table of functions per instruction set.
//
// A kernel is a pure function on raw pointers: it reads its parameters, writes its outputs,
// allocates nothing, never throws and has no state, so that any thread may call it. The scalar
// table (reference.cpp, sums in double) is the specification; every other table is tested against
// it. Scores are s = q . k with q already multiplied by the attention scale (1/sqrt(D)).
//
// Attention mass. Decode kernels report, per group of 16 windows and query head, the sums
//   window_sum[w] = sum over the window's tokens of exp(power * (s - group_max)),
// with group_max the reference maximum used for that group (any value >= the group's largest score
// that keeps the sums finite). With the final (m, l) of all segments the mass of the window is
//   window_sum[w] * exp(power * (group_max - m)) / l^power        (power is 1 for plain mass).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/geometry.h"
#include "kernels/layout.h"
#include "kernels/rope.h"
#include "kernels/softmax_state.h"

namespace qevict {

// Limits of the shapes that the kernels take: scratch is on the stack.
inline constexpr int kMaxHeadDim = 256;  // a multiple of 4
inline constexpr int kMaxWindow = 32;    // with a Quantized tier: Omega * bits a multiple of 8

// One group of 1..16 windows (layout.h).
struct GroupRef {
  const std::uint8_t* data = nullptr;
  int lanes = 0;
};

// Where a decode kernel leaves the attention mass; both null when no policy asked for it.
struct GroupMass {
  float* window_sum = nullptr;  // [n_groups][group_size][kLanes]; unused lanes are written as 0
  float* group_max = nullptr;   // [n_groups][group_size]
  float power = 1.0F;           // exponent on the probability (ranker pnorm)
};

// One query token, one KV head, Full groups. `state` is read and written: the kernel continues it.
struct AttendFullParams {
  const Geometry* geometry = nullptr;
  int kv_head = 0;
  const float* q = nullptr;  // [group_size][D], post-RoPE, scaled
  const GroupRef* groups = nullptr;
  int n_groups = 0;
  SoftmaxState state{};
  GroupMass mass{};
};

// The same over Quantized groups: keys are dequantised, rotated and multiplied in fp32 registers.
// R(base + j) = R(base) R(j): keys are rotated by their window's base, q by -j.
struct AttendQuantizedParams {
  const Geometry* geometry = nullptr;
  int kv_head = 0;
  const float* q_back = nullptr;  // what this table's rotate_queries_back() left
  const float* phases = nullptr;  // [n_groups][D/2][2][kLanes]: cos, sin of each lane's window base
  const GroupRef* groups = nullptr;
  int n_groups = 0;
  SoftmaxState state{};
  GroupMass mass{};
  QuantRange range{};  // of the layer, where a grid is not F16
};

// Size of one KV head's q_back.
inline std::size_t query_back_floats(const Geometry& g) {
  return static_cast<std::size_t>(g.window) * g.group_size() * g.head_dim;
}

// Sinks and local zone: token-lane fp16 store, one allocation a layer.
//   k fp16 [H][D][capacity] post-RoPE, v fp16 [H][capacity][D]; capacity is a multiple of 16.
// Rows n_tokens..capacity-1 hold anything, NaN included, and must not influence a result.
struct RecentRef {
  const fp16_t* k = nullptr;
  const fp16_t* v = nullptr;
  int capacity = 0;
  int n_tokens = 0;
};

struct AttendRecentParams {
  const Geometry* geometry = nullptr;
  int kv_head = 0;
  const float* q = nullptr;  // [group_size][D]
  RecentRef recent{};
  SoftmaxState state{};
  // [group_size][capacity]: exp(power * (s - token_max)), 0 beyond n_tokens; null: not wanted.
  float* token_sum = nullptr;
  float* token_max = nullptr;  // [group_size]; 0 when there are no tokens
  float power = 1.0F;
};

// Prompt attention of query tokens q_begin..q_end-1 of a block, for one KV head, causal.
//
// Keys: the compressed prefix (all of it visible), then rows. Row r of k_rows/v_rows is a token;
// the first n_sink_rows are sinks (attended, no mass); row n_sink_rows + i belongs to region window
// i / Omega. Query token t sees rows 0 .. q_row0 + t (its own key included).
struct PrefillParams {
  const Geometry* geometry = nullptr;
  int kv_head = 0;
  const float* q = nullptr;   // [n_tokens][n_heads][D], post-RoPE, NOT scaled
  float* out = nullptr;       // same shape; written for the group's heads and this tile's tokens
  std::ptrdiff_t stride = 0;  // floats from one token to the next in q and out; 0: n_heads * D
  float scale = 1.0F;         // multiplies q . k
  int q_begin = 0;
  int q_end = 0;  // at most kPrefillTile tokens after q_begin
  int q_row0 = 0;
  const fp16_t* k_rows = nullptr;  // [n_rows][D] of this KV head, post-RoPE
  const fp16_t* v_rows = nullptr;  // [n_rows][D]
  int n_sink_rows = 0;
  const GroupRef* full = nullptr;
  int n_full = 0;  // groups
  const GroupRef* quantized = nullptr;
  int n_quantized = 0;  // groups
  // [n_quantized]: the geometry of each Quantized group, where they have different codes or grids;
  // null: `geometry`.
  const Geometry* const* quantized_geometry = nullptr;
  const float* phases = nullptr;  // of the Quantized groups, as above
  QuantRange quantized_range{};   // of the layer, where a grid is not F16
  const RopeSpec* rope = nullptr;
  // Column sums of the probabilities (to the power `power`) over this tile's rows, per query head:
  // [group_size][mass_stride], overwritten for windows 0 .. n-1 in the order: Full windows (16 a
  // group, unused lanes 0), Quantized windows (the same), region windows up to the tile's last row.
  float* mass = nullptr;  // null: not wanted
  std::ptrdiff_t mass_stride = 0;
  float power = 1.0F;
  void* scratch = nullptr;  // prefill_scratch_bytes(), 64-byte aligned
};
inline constexpr int kPrefillTile = 32;
inline std::ptrdiff_t prefill_stride(const PrefillParams& p) {
  return p.stride > 0 ? p.stride : std::ptrdiff_t{p.geometry->n_heads} * p.geometry->head_dim;
}
// Upper bound of the scratch that prefill_tile needs for these parameters' shape.
std::size_t prefill_scratch_bytes(const Geometry& g, int n_full_groups, int n_quantized_groups,
                                  int n_rows);

inline const Geometry& quantized_geometry(const PrefillParams& p, int group) {
  return p.quantized_geometry != nullptr ? *p.quantized_geometry[group] : *p.geometry;
}

struct DenseOps;  // kernels/dense.h

struct KernelTable {
  // "reference", "sse4", "avx2", "avx512", "avx512_vnni" (quantised values in whole numbers),
  // "neon", "amx" (prompts on tiles)
  const char* name;
  void (*attend_full)(const AttendFullParams&) noexcept;
  void (*attend_quantized)(const AttendQuantizedParams&) noexcept;
  void (*attend_recent)(const AttendRecentParams&) noexcept;
  // q [group_size][D] -> Omega copies, copy j rotated by -j positions, in an order that is private
  // to the table; q_back has query_back_floats(). cos/sin: [Omega][D/2].
  void (*rotate_queries_back)(const Geometry&, const float* q, const float* cos, const float* sin,
                              float* q_back) noexcept;
  // Phases of one group: windows[lane] -> out [D/2][2][kLanes]; lanes beyond `lanes` get angle 0.
  void (*window_phases)(const WindowPhases&, const std::int32_t* windows, int lanes,
                        float* out) noexcept;
  void (*prefill_tile)(const PrefillParams&) noexcept;
  const DenseOps* dense;  // un-fused passes
};

// The scalar specification.
const KernelTable& reference_kernels() noexcept;
// The best table this CPU runs, or the one that the environment variable QEVICT_ISA names
// (reference|sse4|avx2|avx512|avx512_vnni|amx|neon); an unknown or unsupported name is reported by
// isa_error().
const KernelTable& active_kernels() noexcept;
// A table by name; null when this CPU or build lacks it. "emulated_tiles", the best vector table
// with prompt products on emulated matrix tiles (slow), is there for tests and not among
// available_isas().
const KernelTable* find_kernels(std::string_view isa) noexcept;
// Names that find_kernels() knows on this machine, slowest first ("reference" included).
std::vector<std::string> available_isas();
// Empty, or why QEVICT_ISA could not be honoured.
std::string isa_error();

}  // namespace qevict
