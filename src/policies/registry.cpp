#include "policies/registry.h"

#include <string>

// One line a policy: its factory, defined in the file of its name.
#define QE_POLICIES(X)         \
  X(full_policy)               \
  X(qevict_policy)             \
  X(qevict_plus_policy)        \
  X(streaming_llm_policy)      \
  X(h2o_policy)                \
  X(tova_policy)               \
  X(snapkv_policy)             \
  X(pyramidkv_policy)          \
  X(adakv_policy)              \
  X(criticalkv_policy)         \
  X(criticaladakv_policy)      \
  X(defensivekv_policy)        \
  X(layer_defensivekv_policy)  \
  X(expected_attention_policy) \
  X(knorm_policy)              \
  X(kivi_policy)               \
  X(kvquant_policy)            \
  X(zipcache_policy)           \
  X(r1_policy)                 \
  X(r2_policy)                 \
  X(r4_policy)

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

Result<const PolicySpec*> require_policy(const CacheConfig& config) {
  Result<const PolicySpec*> policy = require_policy(std::string_view(config.policy));
  if (!policy) return policy;
  if ((*policy)->check_parameters) {
    if (Status ok = (*policy)->check_parameters(config); !ok) return std::unexpected(ok.error());
  } else if (!config.policy_parameters.empty()) {
    return bad_input("policy " + config.policy + " has no parameter '" +
                     config.policy_parameters.front().key + "' (--policy): leave it out");
  }
  return policy;
}

}  // namespace qevict
