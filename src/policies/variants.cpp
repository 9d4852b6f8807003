// The variants that the QEvict paper compares itself with (its Table 14). R3 is qevict.
#include "policies/parts.h"

namespace qevict {
namespace {

PolicySpec variant(std::string name, std::string what, std::string parameters,
                   void (*configure)(CacheConfig&)) {
  return {.name = std::move(name),
          .paper = std::move(what),
          .parameters = std::move(parameters),
          .schedule = Schedule::EveryWindow,
          .configure = configure,
          .make_scorer = make_ranker,
          .make_allocator = make_uniform_allocator};
}

constexpr const char* kEviction =
    "kv_budget=0.2 n_sink=5 n_local=32 ranker=mass|decay:G|pnorm:P|key_l2 local_rule=floor|ceil "
    "strict_budget=false";

}  // namespace

PolicySpec r1_policy() {
  return variant("r1", "QEvict's R1: single tokens are evicted, nothing is quantised", kEviction,
                 use_single_tokens);
}

PolicySpec r2_policy() {
  return variant("r2", "QEvict's R2: its windows and bytes, nothing is quantised",
                 std::string(kEviction) + " window=8",
                 [](CacheConfig& config) { config.quant_share = 0.0; });
}

PolicySpec r4_policy() {
  return variant("r4", "QEvict's R4: windows of 32 tokens",
                 std::string(kEviction) + " quant_share=0.7 quant_bits=2 promotion=true",
                 [](CacheConfig& config) { config.window = 32; });
}

}  // namespace qevict
