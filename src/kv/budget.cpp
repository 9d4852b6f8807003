#include "kv/budget.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace qevict {
namespace {

std::int64_t history_tokens(std::int64_t total_tokens, int n_sink, int n_local,
                            std::int64_t reserved_tokens) {
  return std::max<std::int64_t>(0, total_tokens - n_sink - n_local - reserved_tokens);
}

int resolve_local(const CacheConfig& config, std::int64_t total_tokens) {
  if (config.local_share <= 0.0) return config.n_local;
  return static_cast<int>(std::floor(config.local_share * static_cast<double>(total_tokens)));
}

// The local zone grows from n_local + remainder by one window until the next event.
std::int64_t reserve(const CacheConfig& config, int n_local, std::int64_t n_positions) {
  if (!config.strict_budget) return 0;
  const std::int64_t remainder =
      local_remainder(n_positions, config.n_sink, n_local, config.window, config.local_rule);
  return std::max<std::int64_t>(0, remainder + config.window);
}

// What a budget of `total` tokens must hold at least: sinks, local, the reserve and one Full
// window.
std::int64_t needed_tokens(const CacheConfig& config, std::int64_t total,
                           std::int64_t n_positions) {
  const int n_local = resolve_local(config, total);
  return config.n_sink + std::int64_t{n_local} + config.window +
         reserve(config, n_local, n_positions);
}

std::int64_t budget_tokens(const KvBudget& budget, std::int64_t context_tokens,
                           double bytes_per_token) {
  switch (budget.unit) {
    case KvBudget::Unit::Ratio:
      return static_cast<std::int64_t>(
          std::floor(budget.value * static_cast<double>(context_tokens)));
    case KvBudget::Unit::Bytes:
      return static_cast<std::int64_t>(std::floor(budget.value / bytes_per_token));
    case KvBudget::Unit::Tokens:
      return static_cast<std::int64_t>(std::floor(budget.value));
  }
  return 0;
}

std::string amount(KvBudget::Unit unit, std::int64_t tokens, std::int64_t bytes_per_token) {
  return unit == KvBudget::Unit::Bytes ? std::to_string(tokens * bytes_per_token) + "B"
                                       : std::to_string(tokens) + "tok";
}

std::int64_t windows_of(std::int64_t tokens, int n_sink, int window) {
  return std::max<std::int64_t>(0, (tokens - n_sink + window - 1) / window);
}

// Resolves everything that follows from total_tokens.
void fill_plan(BudgetPlan& plan, const Geometry& g, int n_layers, const CacheConfig& config,
               std::int64_t n_positions) {
  plan.uncompressed = plan.total_tokens >= plan.context_tokens;
  plan.geometry = g;
  plan.n_sink = config.n_sink;
  // Beyond the context a budget changes nothing, the local zone included.
  plan.n_local = resolve_local(config, std::min(plan.total_tokens, plan.context_tokens));
  const auto token_bytes = static_cast<std::int64_t>(g.token_bytes());
  if (plan.uncompressed) {
    plan.quota = {windows_of(plan.context_tokens, plan.n_sink, config.window), 0};
  } else {
    plan.reserved_tokens = reserve(config, plan.n_local, n_positions);
    plan.quota = budget_quota(g, plan.total_tokens, plan.n_sink, plan.n_local, config.quant_share,
                              plan.reserved_tokens);
  }
  plan.history_bytes =
      history_tokens(plan.total_tokens, plan.n_sink, plan.n_local, plan.reserved_tokens) *
      token_bytes;
  plan.layer_bytes = plan.total_tokens * token_bytes;
  plan.budget_bytes = plan.layer_bytes * n_layers;
}

}  // namespace

TierQuota budget_quota(const Geometry& g, std::int64_t total_tokens, int n_sink, int n_local,
                       double quant_share, std::int64_t reserved_tokens) {
  const double history =
      static_cast<double>(history_tokens(total_tokens, n_sink, n_local, reserved_tokens) *
                          static_cast<std::int64_t>(g.token_bytes()));
  // Doubles in this order: the vectors were made so.
  const double full = (1.0 - quant_share) * history / static_cast<double>(g.full_window_bytes());
  const double quantized = quant_share * history / static_cast<double>(g.quantized_window_bytes());
  return {static_cast<std::int64_t>(std::floor(full)),
          static_cast<std::int64_t>(std::floor(quantized))};
}

Result<BudgetPlan> solve_budget(const Geometry& g, int n_layers, const CacheConfig& config,
                                std::int64_t n_positions, std::int64_t max_new_tokens) {
  BudgetPlan plan;
  plan.context_tokens = n_positions + max_new_tokens;
  if (n_positions < 0 || max_new_tokens < 0 ||
      plan.context_tokens > std::numeric_limits<TokenPos>::max()) {
    return bad_input(std::to_string(plan.context_tokens) +
                     " (context tokens): use a shorter prompt or fewer new tokens");
  }
  const std::int64_t bytes_per_token = static_cast<std::int64_t>(g.token_bytes()) * n_layers;
  plan.total_tokens =
      budget_tokens(config.budget, plan.context_tokens, static_cast<double>(bytes_per_token));
  std::int64_t smallest = plan.total_tokens;
  while (smallest < plan.context_tokens &&
         smallest < needed_tokens(config, smallest, n_positions)) {
    ++smallest;
  }
  if (smallest > plan.total_tokens) {
    if (config.budget.unit != KvBudget::Unit::Ratio) {
      return bad_input(config.budget.to_string() +
                       " (kv_budget): too small for the sinks, the local tokens and one window; "
                       "use at least " +
                       amount(config.budget.unit, smallest, bytes_per_token));
    }
    plan.total_tokens = smallest;
    plan.raised = true;
  }
  fill_plan(plan, g, n_layers, config, n_positions);
  return plan;
}

void plan_selection(BudgetPlan& plan, std::int64_t max_new_tokens, std::int64_t smallest_budget) {
  const std::int64_t n_positions = plan.context_tokens - max_new_tokens;
  const std::int64_t affordable = plan.total_tokens - max_new_tokens;
  plan.kept_tokens = std::max(smallest_budget, affordable);
  plan.over_budget = std::min(plan.kept_tokens, n_positions) > affordable;
  plan.quota = {};
}

std::int64_t evictable_windows(std::int64_t n, int n_sink, int n_local, int window,
                               LocalRule rule) {
  const std::int64_t history = n - n_sink - n_local;
  if (history <= 0) return 0;
  switch (rule) {
    case LocalRule::Floor:
      return history / window;
    case LocalRule::Ceil:
      // A window that is still partial stays, also where n_local is below one window.
      return std::min((history + window - 1) / window, (n - n_sink) / window);
  }
  return 0;
}

std::int64_t local_remainder(std::int64_t n, int n_sink, int n_local, int window, LocalRule rule) {
  // The first event length from which on the zone is at its steady size.
  const std::int64_t steady = std::int64_t{n_sink} + n_local + window;
  if (n < steady) n += (steady - n + window - 1) / window * window;
  return n - n_sink - n_local - window * evictable_windows(n, n_sink, n_local, window, rule);
}

}  // namespace qevict
