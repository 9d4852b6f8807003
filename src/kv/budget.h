// Bytes -> windows: solves the budget of one sequence (method.md section 3; vectors: budget.json).
#pragma once

#include <cstdint>

#include "kernels/geometry.h"
#include "kv/types.h"
#include "qevict/config.h"

namespace qevict {

struct BudgetPlan {
  Geometry geometry;                 // of a layer
  std::int64_t context_tokens = 0;   // T: positions so far + new prompt + max new tokens
  std::int64_t total_tokens = 0;     // floor(beta T), or from bytes or tokens
  int n_sink = 0, n_local = 0;       // resolved (local_share applied)
  std::int64_t reserved_tokens = 0;  // strict_budget: tokens that wait for routing, reserved
  std::int64_t history_bytes = 0;    // M_hist, one layer
  TierQuota quota;                   // K_f, K_q of one layer
  bool uncompressed = false;         // total_tokens >= context_tokens: nothing is compressed
  bool raised = false;               // a fraction below the smallest budget was raised to it
  // Policies that select once: tokens that a KV head keeps of the prompt, on average, and whether
  // that is the policy's floor, so that the budget will be exceeded (plan_selection()).
  std::int64_t kept_tokens = 0;
  bool over_budget = false;
  std::int64_t layer_bytes = 0;   // total_tokens * 4HD
  std::int64_t budget_bytes = 0;  // layer_bytes * n_layers
};

// The formula alone, as the vectors state it: no raising, no refusal. K_f = K_q = 0 below S + L.
TierQuota budget_quota(const Geometry& g, std::int64_t total_tokens, int n_sink, int n_local,
                       double quant_share, std::int64_t reserved_tokens = 0);

// The commands' rules on top: a fraction below S + L + one window is raised (raised = true); bytes
// or tokens below it are refused, and the error names the smallest budget that works. n_positions:
// tokens in the cache once the prompt is in (for the strict option's remainder).
Result<BudgetPlan> solve_budget(const Geometry& g, int n_layers, const CacheConfig& config,
                                std::int64_t n_positions, std::int64_t max_new_tokens);

// Fills the selection's part of a solved plan: what is generated stays, so the prompt's tokens get
// total_tokens - max_new_tokens of the budget, but never fewer than smallest_budget.
void plan_selection(BudgetPlan& plan, std::int64_t max_new_tokens, std::int64_t smallest_budget);

// Windows completely outside the local zone at length n (vectors: geometry), and where local
// begins.
std::int64_t evictable_windows(std::int64_t n, int n_sink, int n_local, int window, LocalRule rule);

// Tokens beyond n_local that the local zone of an endless run holds right after an event, when
// events fall on lengths n + k*window. Floor: 0 .. window-1. Ceil: usually 0 or negative.
std::int64_t local_remainder(std::int64_t n, int n_sink, int n_local, int window, LocalRule rule);

}  // namespace qevict
