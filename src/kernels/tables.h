// How the kernel tables are put together (internal to kernels/).
//
// The SIMD files are compiled once per Highway target (foreach_target.h) and each exports one
// getter of its functions for a given target. dispatch.cpp asks for every target that it offers,
// once, and makes one KernelTable of the parts.
//
// The getters go through ops_for_target() (target_ops.h).
//
// Thread safety: the getters change Highway's global choice; only dispatch.cpp calls them, under
// its lock.
#pragma once

#include <cstdint>

#include "kernels/dense.h"
#include "kernels/kernels.h"

namespace qevict {

struct AttendOps {
  std::int64_t target;  // the HWY_TARGET that these functions were compiled for
  void (*attend_full)(const AttendFullParams&) noexcept;
  void (*attend_quantized)(const AttendQuantizedParams&) noexcept;
  void (*attend_recent)(const AttendRecentParams&) noexcept;
  void (*rotate_queries_back)(const Geometry&, const float* q, const float* cos, const float* sin,
                              float* q_back) noexcept;
  void (*window_phases)(const WindowPhases&, const std::int32_t* windows, int lanes,
                        float* out) noexcept;
  // With the values in whole numbers (attend_vnni.h), for the CPUs that have VNNI as well.
  void (*attend_quantized_integer)(const AttendQuantizedParams&) noexcept;
};

struct PrefillOps {
  void (*prefill_tile)(const PrefillParams&) noexcept;
  // Products on the CPU's matrix tiles (only where amx_products() has them), and on emulated ones.
  void (*prefill_tile_amx)(const PrefillParams&) noexcept;
  void (*prefill_tile_emulated)(const PrefillParams&) noexcept;
  std::int64_t target = 0;  // as above
};

struct TargetDenseOps {
  DenseOps ops;
  std::int64_t target = 0;  // as above
};

// attend_simd.cpp, prefill_simd.cpp, dense_simd.cpp: the functions for exactly this Highway target
// (HWY_SSE4, HWY_AVX2, HWY_AVX3, HWY_NEON); null when the build lacks it. The caller knows that the
// CPU has it.
const AttendOps* attend_ops_for_target(std::int64_t hwy_target);
const PrefillOps* prefill_ops_for_target(std::int64_t hwy_target);
const DenseOps* dense_ops_for_target(std::int64_t hwy_target);

// dense_reference.cpp.
extern const DenseOps kReferenceDenseOps;

// prefill_reference.cpp.
void reference_prefill_tile(const PrefillParams& p) noexcept;

// reference.cpp.
void reference_attend_full(const AttendFullParams& p) noexcept;
void reference_attend_quantized(const AttendQuantizedParams& p) noexcept;
void reference_attend_recent(const AttendRecentParams& p) noexcept;
void reference_rotate_queries_back(const Geometry& g, const float* q, const float* cos,
                                   const float* sin, float* q_back) noexcept;
void reference_window_phases(const WindowPhases& phases, const std::int32_t* windows, int lanes,
                             float* out) noexcept;

}  // namespace qevict
