#include "cli/contenders.h"

#include <fmt/format.h>

#include <algorithm>

#include "policies/registry.h"

namespace qevict::cli {
namespace {

bool takes_budget(const std::string& policy) {
  const PolicySpec* spec = find_policy(policy);
  return spec != nullptr && spec->schedule != Schedule::Never;  // quantisers never evict either
}

Result<Contender> make_contender(const CacheConfig& base, const std::string& policy,
                                 const std::string& budget) {
  Contender contender{policy, {}, base};
  const Result<KvBudget> parsed = KvBudget::parse(budget);
  if (!parsed) return std::unexpected(parsed.error());
  contender.config.budget = *parsed;
  if (Status s = apply_policy(policy, contender.config); !s) return std::unexpected(s.error());
  if (Status s = contender.config.validate(); !s) return std::unexpected(s.error());
  if (takes_budget(contender.config.policy)) {
    contender.budget = contender.config.budget;
  } else {
    contender.config.budget = {KvBudget::Unit::Ratio, 1.0};
  }
  return contender;
}

}  // namespace

Result<std::vector<Contender>> make_contenders(const CacheConfig& base,
                                               const std::vector<std::string>& policies,
                                               const std::vector<std::string>& budgets) {
  std::vector<Contender> contenders;
  for (const std::string& policy : join_parameters(policies)) {
    for (const std::string& budget : budgets) {
      Result<Contender> contender = make_contender(base, policy, budget);
      if (!contender) return std::unexpected(contender.error());
      const std::string text = budget_text(contender->budget);
      const bool twice = std::ranges::any_of(contenders, [&](const Contender& c) {
        return c.policy == policy && budget_text(c.budget) == text;
      });
      if (twice) {
        return bad_input(fmt::format("{} at budget {} twice (--policies, --budgets): name it once",
                                     policy, text));
      }
      const bool once = !contender->budget;
      contenders.push_back(std::move(*contender));
      if (once) break;
    }
  }
  return contenders;
}

}  // namespace qevict::cli
