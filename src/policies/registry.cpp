#include "policies/registry.h"

#include <string>

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

Result<const PolicySpec*> require_policy(std::string_view name) {
  if (const PolicySpec* policy = find_policy(name)) return policy;
  std::string known;
  for (const PolicySpec& p : policies()) known += (known.empty() ? "" : ", ") + p.name;
  return bad_input("unknown policy '" + std::string(name) + "' (--policy): use one of " + known);
}

}  // namespace qevict
