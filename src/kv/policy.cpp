#include "kv/policy.h"

namespace qevict {

void configure_policy(const PolicySpec& policy, CacheConfig& config) {
  if (policy.schedule == Schedule::Once) {
    config.window = 1;
    config.quant_share = 0.0;
    config.n_sink = 0;
    config.n_local = 0;
    config.local_share = 0.0;
    config.strict_budget = false;
  }
  if (policy.configure) policy.configure(config);
}

}  // namespace qevict
