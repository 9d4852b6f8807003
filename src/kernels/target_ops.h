// How a file that is compiled for every Highway target hands out the functions of one of them
// (internal to kernels/).
#pragma once

#include <hwy/targets.h>

#include <cstdint>

namespace qevict {

// get() dispatches to the chosen target (HWY_DYNAMIC_DISPATCH) and returns its table, which names
// the target it was compiled for. Highway 1.0.3 can only dispatch to the chosen target, so the
// wanted one is chosen for the moment of the call. Null when the build lacks it.
template <class Get>
auto ops_for_target(std::int64_t target, const Get& get) -> decltype(get()) {
  hwy::GetChosenTarget().Update(target);
  const auto* ops = get();
  hwy::GetChosenTarget().DeInit();
  return ops != nullptr && ops->target == target ? ops : nullptr;
}

}  // namespace qevict
