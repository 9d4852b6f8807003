#include "kv/budget.h"
#include "policies/parts.h"

namespace qevict {
namespace {

class UniformAllocator final : public Allocator {
 public:
  TierQuota quota(const BudgetPlan& plan, int, int) const override { return plan.quota; }
};

}  // namespace

std::unique_ptr<Allocator> make_uniform_allocator(const CacheConfig&) {
  return std::make_unique<UniformAllocator>();
}

}  // namespace qevict
