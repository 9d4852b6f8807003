// Lines of results -> the numbers of tables and plots. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/cell.h"
#include "eval/settings.h"
#include "eval/statistics.h"

namespace qevict {

// A row of a table: a policy at a budget, over the samples of one task or of all of them.
struct ScoreRow {
  std::string policy;
  std::optional<KvBudget> budget;
  double score = 0.0, stderr_of_mean = 0.0;  // 0..1
  int n = 0;                                 // samples
  // Means over the samples.
  double kv_bytes = 0.0, kv_budget_bytes = 0.0, metadata_bytes = 0.0, full_cache_bytes = 0.0;
  double prompt_tokens = 0.0, generated_tokens = 0.0;
  double seconds = 0.0;  // sum
  int over_budget = 0;   // samples
};

// The reference policy's score minus a rival's on the same samples, at the reference's budget. A
// rival that takes no budget is compared with every budget of the reference.
struct Comparison {
  std::string policy;              // the rival
  std::optional<KvBudget> budget;  // the rival's
  KvBudget reference_budget;
  Difference difference;
  double bytes_ratio = 0.0;  // the reference's measured bytes to the rival's
  bool over_budget = false;  // one of both held more than its budget: no claim at equal bytes
};

struct TaskTable {
  std::string task;  // "" is the average over tasks
  std::string metric;
  std::vector<ScoreRow>
      rows;  // in the order of the run's policies; rows without samples are left out
  std::vector<Comparison> comparisons;
  // The full cache fails at it: says nothing about a cache.
  bool full_fails = false;
  bool has_full = false;
};

struct Summary {
  std::vector<TaskTable> tasks;
  // Over the tasks that the full cache can do, each counting alike; over all where there is no full
  // cache to tell. Empty below two such tasks.
  std::optional<TaskTable> average;
  std::string reference;  // the policy that rivals are compared with; "": none
  std::int64_t cells = 0, planned = 0;
};

// A full cache below this fails: 20 % of exact answers, 10 % of what is scored by overlap.
double smallest_full_score(const std::string& metric);

// Whether rivals are compared with it: qevict or qevict+, parameters or not.
bool may_be_reference(std::string_view policy);
// The first such policy with a budget.
std::string reference_policy(const RunSettings& settings);

Summary summarise(const RunSettings& settings, std::span<const CellResult> cells);

// OUT/summary.json: {task: {policy: {budget: {score, n, stderr, kv_bytes, ...}}}}.
EvalJson to_json(const Summary& summary);

}  // namespace qevict
