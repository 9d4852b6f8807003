#include "policies/registry.h"

// One line a policy: its factory, defined in the file of its name.
#define QE_POLICIES(X) \
  X(full_policy)       \
  X(qevict_policy)

namespace qevict {

#define QE_DECLARE(factory) PolicySpec factory();
QE_POLICIES(QE_DECLARE)
#undef QE_DECLARE

std::span<const PolicySpec> policies() {
#define QE_CALL(factory) factory(),
  static const PolicySpec table[] = {QE_POLICIES(QE_CALL)};
#undef QE_CALL
  return table;
}

const PolicySpec* find_policy(std::string_view name) {
  for (const PolicySpec& policy : policies()) {
    if (policy.name == name) return &policy;
  }
  return nullptr;
}

}  // namespace qevict
