#include "eval/summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace qevict {
namespace {

using PolicyEntry = RunSettings::PolicyEntry;

bool same(const PolicyEntry& a, const std::string& policy, const std::optional<KvBudget>& budget) {
  return a.policy == policy && budget_text(a.budget) == budget_text(budget);
}

// The cells of one task and one contender, by sample.
using BySample = std::map<std::string, const CellResult*>;

// [policies of the settings]
std::vector<BySample> cells_of_task(const RunSettings& settings, std::span<const CellResult> cells,
                                    const std::string& task) {
  std::vector<BySample> table(settings.policies.size());
  for (const CellResult& cell : cells) {
    if (cell.task != task) continue;
    for (std::size_t p = 0; p < table.size(); ++p) {
      if (same(settings.policies[p], cell.policy, cell.budget)) table[p][cell.id] = &cell;
    }
  }
  return table;
}

ScoreRow make_row(const PolicyEntry& entry, const BySample& cells) {
  ScoreRow row;
  row.policy = entry.policy;
  row.budget = entry.budget;
  std::vector<double> scores;
  for (const auto& [id, c] : cells) {
    scores.push_back(c->score);
    row.kv_bytes += static_cast<double>(c->kv_resident_bytes);
    row.kv_budget_bytes += static_cast<double>(c->kv_budget_bytes);
    row.metadata_bytes += static_cast<double>(c->metadata_bytes);
    row.full_cache_bytes += static_cast<double>(c->full_cache_bytes);
    row.prompt_tokens += c->prompt_tokens;
    row.generated_tokens += c->generated_tokens;
    row.seconds += c->seconds;
    row.over_budget += c->over_budget;
  }
  row.n = static_cast<int>(scores.size());
  row.score = mean(scores);
  row.stderr_of_mean = standard_error(scores);
  for (double* sum : {&row.kv_bytes, &row.kv_budget_bytes, &row.metadata_bytes,
                      &row.full_cache_bytes, &row.prompt_tokens, &row.generated_tokens}) {
    *sum /= std::max(row.n, 1);
  }
  return row;
}

// A pair of contenders, by their index in the settings.
struct Pair {
  std::size_t reference = 0, rival = 0;
};

std::vector<Pair> pairs(const RunSettings& settings, const std::string& reference) {
  std::vector<Pair> list;
  for (std::size_t rival = 0; rival < settings.policies.size(); ++rival) {
    const PolicyEntry& b = settings.policies[rival];
    if (b.policy == reference) continue;
    for (std::size_t ours = 0; ours < settings.policies.size(); ++ours) {
      const PolicyEntry& a = settings.policies[ours];
      if (a.policy != reference || !a.budget) continue;
      if (!b.budget || budget_text(a.budget) == budget_text(b.budget))
        list.push_back({ours, rival});
    }
  }
  return list;
}

// One pair on one task or several.
struct Paired {
  std::vector<std::vector<double>> differences;  // [tasks]
  double reference_bytes = 0.0, rival_bytes = 0.0;
  bool over_budget = false;

  void add_task(const BySample& reference, const BySample& rival) {
    differences.emplace_back();
    for (const auto& [id, a] : reference) {
      const auto b = rival.find(id);
      if (b == rival.end()) continue;
      differences.back().push_back(a->score - b->second->score);
      reference_bytes += static_cast<double>(a->kv_resident_bytes);
      rival_bytes += static_cast<double>(b->second->kv_resident_bytes);
      over_budget = over_budget || a->over_budget || b->second->over_budget;
    }
  }
};

using Tables = std::vector<std::vector<BySample>>;  // [tasks][policies]

std::vector<Comparison> compare(const RunSettings& settings, const std::string& reference,
                                const Tables& tables) {
  std::vector<Comparison> list;
  for (const Pair& pair : pairs(settings, reference)) {
    Paired paired;
    for (const auto& table : tables) paired.add_task(table[pair.reference], table[pair.rival]);
    Comparison c;
    c.policy = settings.policies[pair.rival].policy;
    c.budget = settings.policies[pair.rival].budget;
    c.reference_budget = *settings.policies[pair.reference].budget;
    c.difference = bootstrap_group_mean(paired.differences);
    c.bytes_ratio = paired.rival_bytes > 0.0 ? paired.reference_bytes / paired.rival_bytes : 0.0;
    c.over_budget = paired.over_budget;
    if (c.difference.n > 0) list.push_back(std::move(c));
  }
  return list;
}

// Each task counts alike. A row that a task lacks is left out.
std::vector<ScoreRow> average_rows(const RunSettings& settings,
                                   const std::vector<const TaskTable*>& tasks) {
  std::vector<ScoreRow> rows;
  const auto k = static_cast<double>(tasks.size());
  for (const PolicyEntry& entry : settings.policies) {
    ScoreRow sum{entry.policy, entry.budget};
    double variance = 0.0;
    std::size_t found = 0;
    for (const TaskTable* task : tasks) {
      const auto row = std::ranges::find_if(
          task->rows, [&](const ScoreRow& r) { return same(entry, r.policy, r.budget); });
      if (row == task->rows.end()) continue;
      ++found;
      sum.score += row->score / k;
      variance += row->stderr_of_mean * row->stderr_of_mean / (k * k);
      sum.n += row->n;
      sum.kv_bytes += row->kv_bytes / k;
      sum.kv_budget_bytes += row->kv_budget_bytes / k;
      sum.metadata_bytes += row->metadata_bytes / k;
      sum.full_cache_bytes += row->full_cache_bytes / k;
      sum.prompt_tokens += row->prompt_tokens / k;
      sum.generated_tokens += row->generated_tokens / k;
      sum.seconds += row->seconds;
      sum.over_budget += row->over_budget;
    }
    sum.stderr_of_mean = std::sqrt(variance);
    if (found == tasks.size()) rows.push_back(std::move(sum));
  }
  return rows;
}

EvalJson comparison_json(const Comparison& c) {
  return {{"difference", c.difference.mean}, {"low", c.difference.low},
          {"high", c.difference.high},       {"n", c.difference.n},
          {"bytes_ratio", c.bytes_ratio},    {"over_budget", c.over_budget}};
}

EvalJson row_json(const ScoreRow& row, const TaskTable& table, const std::string& reference) {
  EvalJson cell = {{"score", row.score},
                   {"n", row.n},
                   {"stderr", row.stderr_of_mean},
                   {"kv_bytes", row.kv_bytes},
                   {"kv_budget_bytes", row.kv_budget_bytes},
                   {"metadata_bytes", row.metadata_bytes},
                   {"full_cache_bytes", row.full_cache_bytes},
                   {"over_budget", row.over_budget},
                   {"prompt_tokens", row.prompt_tokens},
                   {"generated_tokens", row.generated_tokens},
                   {"seconds", row.seconds}};
  EvalJson versus = EvalJson::object();
  for (const Comparison& c : table.comparisons) {
    if (c.policy != row.policy || budget_text(c.budget) != budget_text(row.budget)) continue;
    versus[c.reference_budget.to_string()] = comparison_json(c);
  }
  if (!versus.empty()) cell[reference + "_minus_this"] = std::move(versus);
  return cell;
}

}  // namespace

double smallest_full_score(const std::string& metric) {
  return metric == "f1" || metric == "rouge_l" ? 0.1 : 0.2;
}

bool may_be_reference(std::string_view policy) {
  const std::string_view name = policy.substr(0, policy.find(':'));
  return name == "qevict" || name == "qevict+";
}

std::string reference_policy(const RunSettings& settings) {
  for (const PolicyEntry& entry : settings.policies) {
    if (may_be_reference(entry.policy) && entry.budget) return entry.policy;
  }
  return "";
}

Summary summarise(const RunSettings& settings, std::span<const CellResult> cells) {
  Summary summary;
  summary.reference = reference_policy(settings);
  summary.planned = planned_cells(settings);
  Tables tables;
  Tables able;  // of the tasks that count in the average
  for (const RunSettings::TaskEntry& task : settings.tasks) {
    TaskTable table;
    table.task = task.name;
    tables.push_back(cells_of_task(settings, cells, task.name));
    for (std::size_t p = 0; p < settings.policies.size(); ++p) {
      const BySample& by_sample = tables.back()[p];
      summary.cells += static_cast<std::int64_t>(by_sample.size());
      if (by_sample.empty()) continue;
      table.metric = by_sample.begin()->second->metric;
      table.rows.push_back(make_row(settings.policies[p], by_sample));
      if (settings.policies[p].policy != "full") continue;
      table.has_full = true;
      table.full_fails = table.rows.back().score < smallest_full_score(table.metric);
    }
    table.comparisons = compare(settings, summary.reference, Tables{tables.back()});
    summary.tasks.push_back(std::move(table));
  }
  std::vector<const TaskTable*> counted;
  for (std::size_t t = 0; t < summary.tasks.size(); ++t) {
    if (summary.tasks[t].rows.empty() || summary.tasks[t].full_fails) continue;
    counted.push_back(&summary.tasks[t]);
    able.push_back(tables[t]);
  }
  if (counted.size() < 2) return summary;
  TaskTable average;
  average.rows = average_rows(settings, counted);
  average.comparisons = compare(settings, summary.reference, able);
  average.has_full =
      std::ranges::any_of(average.rows, [](const ScoreRow& row) { return row.policy == "full"; });
  summary.average = std::move(average);
  return summary;
}

EvalJson to_json(const Summary& summary) {
  EvalJson json = EvalJson::object();
  for (const TaskTable& table : summary.tasks) {
    EvalJson& task = json[table.task] = EvalJson::object();
    for (const ScoreRow& row : table.rows) {
      task[row.policy][budget_text(row.budget)] = row_json(row, table, summary.reference);
    }
  }
  return json;
}

}  // namespace qevict
