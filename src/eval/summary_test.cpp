#include "eval/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace qevict {
namespace {

KvBudget ratio(double value) { return {KvBudget::Unit::Ratio, value}; }

RunSettings make_settings() {
  RunSettings s;
  s.tasks = {{"a", 4, ""}, {"b", 2, ""}};
  s.policies = {{"full", std::nullopt}, {"qevict", ratio(0.1)}, {"snapkv", ratio(0.1)}};
  return s;
}

CellResult make_cell(const std::string& task, int id, const RunSettings::PolicyEntry& policy,
                     double score) {
  CellResult c;
  c.task = task;
  c.id = std::to_string(id);
  c.policy = policy.policy;
  c.budget = policy.budget;
  c.score = score;
  c.metric = "all";
  c.full_cache_bytes = 1000;
  c.kv_resident_bytes = policy.budget ? 100 : 1000;
  return c;
}

// Scores of the policies of make_settings() on one task: [policies][samples].
void add_scores(const std::string& task, const std::vector<std::vector<double>>& scores,
                std::vector<CellResult>& cells) {
  const RunSettings settings = make_settings();
  for (std::size_t p = 0; p < scores.size(); ++p) {
    for (std::size_t i = 0; i < scores[p].size(); ++i) {
      cells.push_back(make_cell(task, static_cast<int>(i), settings.policies[p], scores[p][i]));
    }
  }
}

std::vector<CellResult> two_tasks() {
  std::vector<CellResult> cells;
  add_scores("a", {{1, 1, 1, 1}, {1, 1, 0, 1}, {0, 1, 0, 0}}, cells);
  add_scores("b", {{1, 0}, {1, 0}, {1, 0}}, cells);
  return cells;
}

TEST(Summary, RowsHoldMeanErrorAndBytes) {
  const Summary s = summarise(make_settings(), two_tasks());
  ASSERT_EQ(s.tasks.size(), 2U);
  ASSERT_EQ(s.tasks[0].rows.size(), 3U);
  const ScoreRow& row = s.tasks[0].rows[1];
  EXPECT_EQ(row.policy, "qevict");
  EXPECT_EQ(row.score, 0.75);
  EXPECT_NEAR(row.stderr_of_mean, 0.25, 1e-15);  // variance 1/4 over n = 4
  EXPECT_EQ(row.n, 4);
  EXPECT_EQ(row.kv_bytes, 100.0);
  EXPECT_EQ(s.cells, 18);
  EXPECT_EQ(s.planned, 18);
}

TEST(Summary, RivalsAreComparedOnTheSameSamples) {
  const Summary s = summarise(make_settings(), two_tasks());
  EXPECT_EQ(s.reference, "qevict");
  const auto& comparisons = s.tasks[0].comparisons;
  ASSERT_EQ(comparisons.size(), 2U);
  EXPECT_EQ(comparisons[0].policy, "full");  // takes no budget: beside every one of ours
  EXPECT_EQ(comparisons[0].difference.mean, -0.25);
  EXPECT_EQ(comparisons[0].bytes_ratio, 0.1);
  EXPECT_EQ(comparisons[1].policy, "snapkv");
  EXPECT_EQ(comparisons[1].difference.mean, 0.5);  // 1 0 0 1 over four pairs
  EXPECT_EQ(comparisons[1].difference.n, 4);
  EXPECT_EQ(comparisons[1].bytes_ratio, 1.0);
  EXPECT_FALSE(comparisons[1].over_budget);
}

TEST(Summary, SamplesOfOnePolicyOnlyAreNotPaired) {
  std::vector<CellResult> cells;
  add_scores("a", {{}, {1, 1, 1}, {0}}, cells);
  const Summary s = summarise(make_settings(), cells);
  ASSERT_EQ(s.tasks[0].comparisons.size(), 1U);
  EXPECT_EQ(s.tasks[0].comparisons[0].difference.n, 1);
  EXPECT_EQ(s.tasks[0].rows.size(), 2U);  // full has no samples
  EXPECT_FALSE(s.tasks[0].has_full);
}

TEST(Summary, TheAverageCountsTasksAlike) {
  const Summary s = summarise(make_settings(), two_tasks());
  ASSERT_TRUE(s.average.has_value());
  ASSERT_EQ(s.average->rows.size(), 3U);
  EXPECT_EQ(s.average->rows[1].score, (0.75 + 0.5) / 2);
  // 0.25 and 0.5: the root of their squares' sum, over 2.
  EXPECT_NEAR(s.average->rows[1].stderr_of_mean, std::sqrt(0.25 * 0.25 + 0.25) / 2, 1e-15);
  EXPECT_EQ(s.average->comparisons[1].difference.mean, (0.5 + 0.0) / 2);
}

TEST(Summary, ATaskThatTheFullCacheFailsIsMarkedAndNotAveraged) {
  std::vector<CellResult> cells = two_tasks();
  add_scores("c", {{0, 0, 0, 0, 0, 1}, {1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0}}, cells);
  RunSettings settings = make_settings();
  settings.tasks.push_back({"c", 6, ""});
  const Summary s = summarise(settings, cells);
  EXPECT_FALSE(s.tasks[0].full_fails);
  EXPECT_TRUE(s.tasks[2].full_fails);
  ASSERT_TRUE(s.average.has_value());
  EXPECT_EQ(s.average->rows[1].score, (0.75 + 0.5) / 2);
  EXPECT_EQ(smallest_full_score("all"), 0.2);
  EXPECT_EQ(smallest_full_score("rouge_l"), 0.1);
}

TEST(Summary, RowsOverBudgetMakeNoClaim) {
  std::vector<CellResult> cells = two_tasks();
  for (CellResult& c : cells) c.over_budget = c.policy == "snapkv" && c.id == "1";
  const Summary s = summarise(make_settings(), cells);
  EXPECT_EQ(s.tasks[0].rows[2].over_budget, 1);
  EXPECT_TRUE(s.tasks[0].comparisons[1].over_budget);
  EXPECT_FALSE(s.tasks[0].comparisons[0].over_budget);
}

TEST(Summary, JsonHasTheShapeThatScriptsRead) {
  const EvalJson json = to_json(summarise(make_settings(), two_tasks()));
  const EvalJson& cell = json.at("a").at("qevict").at("0.1");
  EXPECT_EQ(cell.at("score"), 0.75);
  EXPECT_EQ(cell.at("n"), 4);
  EXPECT_EQ(cell.at("stderr"), 0.25);
  EXPECT_EQ(cell.at("kv_bytes"), 100.0);
  EXPECT_EQ(json.at("a").at("full").at("null").at("score"), 1.0);
  const EvalJson& versus = json.at("a").at("snapkv").at("0.1").at("qevict_minus_this");
  EXPECT_EQ(versus.at("0.1").at("difference"), 0.5);
}

TEST(Summary, TheReferenceIsTheFirstQevict) {
  RunSettings settings = make_settings();
  settings.policies = {
      {"qevict_like", ratio(0.1)}, {"qevict:window=16", ratio(0.1)}, {"qevict", ratio(0.1)}};
  EXPECT_EQ(reference_policy(settings), "qevict:window=16");
  settings.policies = {{"full", std::nullopt}, {"qevict+", ratio(0.1)}};
  EXPECT_EQ(reference_policy(settings), "qevict+");
  settings.policies.pop_back();
  EXPECT_EQ(reference_policy(settings), "");
}

}  // namespace
}  // namespace qevict
