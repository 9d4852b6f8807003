// The uncompressed cache: windows that leave the local zone go to Full and stay there.
#include "policies/parts.h"

namespace qevict {

PolicySpec full_policy() {
  return {.name = "full",
          .paper = "the whole cache in fp16, no compression",
          .parameters = "none (kv_budget is ignored)",
          .schedule = Schedule::Never,
          .make_scorer = make_no_scorer,
          .make_allocator = make_uniform_allocator};
}

}  // namespace qevict
