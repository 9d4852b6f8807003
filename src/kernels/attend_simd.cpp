// The decode kernels of every SIMD instruction set, and how dispatch.cpp gets them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attend_simd.cpp"
#define HWY_DISABLED_TARGETS HWY_SSSE3  // not offered
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "kernels/tables.h"
#include "kernels/target_ops.h"

#if HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR
#include "kernels/attend_full-inl.h"
#include "kernels/attend_quantized-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace qevict {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR
const AttendOps* get_attend_ops() { return nullptr; }
#else
const AttendOps* get_attend_ops() {
  static constexpr AttendOps kOps = {
      HWY_TARGET,          attend_full,   attend_quantized,        attend_recent,
      rotate_queries_back, window_phases, attend_quantized_integer};
  return &kOps;
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace qevict
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace qevict {

HWY_EXPORT(get_attend_ops);

const AttendOps* attend_ops_for_target(std::int64_t hwy_target) {
  return ops_for_target(hwy_target, [] { return HWY_DYNAMIC_DISPATCH(get_attend_ops)(); });
}

}  // namespace qevict
#endif  // HWY_ONCE
