// What the kernels use of Highway's library, for the cross-compiled tests: clang has no run-time
// dispatch on Arm, so there is one target and nothing to detect.
#include <hwy/targets.h>

namespace hwy {

std::int64_t SupportedTargets() { return HWY_STATIC_TARGET; }

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
