#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "eval/report_parts.h"
#include "eval/svg.h"

namespace qevict {
namespace {

constexpr const char* kFailsMark =
    " <span class=\"mark\" title=\"says nothing about a cache\">full cache fails</span>";
constexpr const char* kOverMark =
    " <span class=\"mark\" title=\"held more than its budget in some samples: no claim at equal "
    "bytes\">over budget</span>";

constexpr const char* kPairOverMark =
    "<span class=\"mark\" title=\"one of the two held more than its budget in some samples: no "
    "claim "
    "at equal bytes\">over budget</span> ";

// With its sign, and 0 without one.
std::string signed_text(double value) {
  const std::string text = fmt::format("{:+.1f}", value);
  return text == "-0.0" || text == "+0.0" ? "0.0" : text;
}

std::string score_text(const ScoreRow& row) {
  return fmt::format("{:.1f} <span class=\"se\">&plusmn;{:.1f}</span>", 100.0 * row.score,
                     100.0 * row.stderr_of_mean);
}

const ScoreRow* find_row(const TaskTable& table, const RunSettings::PolicyEntry& entry) {
  for (const ScoreRow& row : table.rows) {
    if (row.policy == entry.policy && budget_text(row.budget) == budget_text(entry.budget)) {
      return &row;
    }
  }
  return nullptr;
}

std::string row_class(const std::string& policy, const std::string& reference) {
  if (policy == "full") return " class=\"full\"";
  return policy == reference ? " class=\"ours\"" : "";
}

// Tasks, then the average.
std::vector<const TaskTable*> columns(const Summary& summary) {
  std::vector<const TaskTable*> tables;
  for (const TaskTable& table : summary.tasks) tables.push_back(&table);
  if (summary.average) tables.push_back(&*summary.average);
  return tables;
}

// The best score of a column among the rows with a budget that kept it; -1 where it says nothing.
double best_score(const TaskTable& table, const std::vector<RunSettings::PolicyEntry>& entries) {
  double best = -1.0;
  if (table.full_fails) return best;
  for (const auto& entry : entries) {
    const ScoreRow* row = entry.budget ? find_row(table, entry) : nullptr;
    if (row != nullptr && row->over_budget == 0) best = std::max(best, row->score);
  }
  return best;
}

std::string overview_row(const RunSettings::PolicyEntry& entry, const Summary& summary,
                         const std::vector<double>& best) {
  const std::vector<const TaskTable*> tables = columns(summary);
  std::string cells;
  double bytes = 0.0, full_bytes = 0.0;
  bool over = false;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const ScoreRow* row = find_row(*tables[i], entry);
    if (row == nullptr) {
      cells += "<td class=\"dim\">&ndash;</td>";
      continue;
    }
    const bool is_best = entry.budget && row->over_budget == 0 && row->score == best[i];
    cells += fmt::format("<td{}>{}</td>", is_best ? " class=\"best\"" : "", score_text(*row));
    if (tables[i]->task.empty()) continue;
    bytes += row->kv_bytes * row->n;
    full_bytes += row->full_cache_bytes * row->n;
    over = over || row->over_budget > 0;
  }
  return fmt::format("<tr{}><td>{}{}</td><td>{:.1f}&thinsp;%</td>{}</tr>\n",
                     row_class(entry.policy, summary.reference), escape_html(entry.policy),
                     over ? kOverMark : "", full_bytes > 0.0 ? 100.0 * bytes / full_bytes : 0.0,
                     cells);
}

// Narrower: "ruler:" and "vt" below each other.
std::string task_heading(const std::string& task) {
  const std::size_t colon = task.find(':');
  if (colon == std::string::npos) return escape_html(task);
  return escape_html(task.substr(0, colon + 1)) + "<br>" + escape_html(task.substr(colon + 1));
}

std::string overview_table(const std::string& budget,
                           const std::vector<RunSettings::PolicyEntry>& entries,
                           const Summary& summary) {
  std::string head = "<th>policy</th><th>KV of full,<br>measured</th>";
  std::vector<double> best;
  for (const TaskTable* table : columns(summary)) {
    best.push_back(best_score(*table, entries));
    head +=
        fmt::format("<th>{}{}</th>", table->task.empty() ? "average" : task_heading(table->task),
                    table->full_fails ? std::string("<br>") + kFailsMark : "");
  }
  std::string body;
  for (const auto& entry : entries) body += overview_row(entry, summary, best);
  return fmt::format(
      "<h3>Budget {}</h3>\n<div class=\"scroll\"><table><thead><tr>{}</tr></thead><tbody>\n{}"
      "</tbody></table></div>\n",
      escape_html(budget), head, body);
}

}  // namespace

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  for (; bytes >= 1024.0 && unit < 4; ++unit) bytes /= 1024.0;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 2, kUnits[unit]);
}

std::string overview_tables(const RunSettings& settings, const Summary& summary) {
  std::vector<std::string> budgets;
  for (const auto& entry : settings.policies) {
    const std::string text = budget_text(entry.budget);
    if (entry.budget && std::ranges::find(budgets, text) == budgets.end()) budgets.push_back(text);
  }
  if (budgets.empty()) budgets.emplace_back("null");
  std::string out;
  for (const std::string& budget : budgets) {
    std::vector<RunSettings::PolicyEntry> entries;
    // The full cache is the measure of all others.
    for (const bool full : {true, false}) {
      for (const auto& entry : settings.policies) {
        const bool here = !entry.budget || budget_text(entry.budget) == budget;
        if (here && (entry.policy == "full") == full) entries.push_back(entry);
      }
    }
    out += overview_table(budget == "null" ? "none" : budget, entries, summary);
  }
  return out;
}

std::string task_table(const TaskTable& table, const std::string& reference) {
  std::string body;
  for (const ScoreRow& row : table.rows) {
    const double share =
        row.full_cache_bytes > 0.0 ? 100.0 * row.kv_bytes / row.full_cache_bytes : 0.0;
    body += fmt::format(
        "<tr{}><td>{}{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.1f}&thinsp;%</td>"
        "<td>{}</td><td>{}</td><td>{:.0f}</td><td>{:.1f}</td><td>{:.1f}</td></tr>\n",
        row_class(row.policy, reference), escape_html(row.policy),
        row.over_budget > 0 ? kOverMark : "",
        row.budget ? escape_html(row.budget->to_string()) : "&ndash;", score_text(row), row.n,
        bytes_text(row.kv_bytes), share, row.budget ? bytes_text(row.kv_budget_bytes) : "&ndash;",
        bytes_text(row.metadata_bytes), row.prompt_tokens, row.generated_tokens, row.seconds);
  }
  return fmt::format(
      "<div class=\"scroll\"><table><thead><tr><th>policy</th><th>budget</th><th>score</th>"
      "<th>n</th><th>KV measured</th><th>of full</th><th>allowed</th><th>metadata</th>"
      "<th>prompt<br>tokens</th><th>generated<br>tokens</th><th>seconds</th></tr></thead><tbody>\n"
      "{}</tbody></table></div>\n",
      body);
}

std::string comparison_table(const TaskTable& table, const std::string& reference) {
  if (table.comparisons.empty()) return "";
  std::string body;
  for (const Comparison& c : table.comparisons) {
    const Difference& d = c.difference;
    const char* colour = !d.clear() ? "" : d.mean > 0.0 ? " class=\"good\"" : " class=\"bad\"";
    body += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td{}>{}</td><td>{} &hellip; {}</td><td>{}</td>"
        "<td>{}{:.2f}</td></tr>\n",
        escape_html(c.policy), c.budget ? escape_html(c.budget->to_string()) : "&ndash;",
        escape_html(c.reference_budget.to_string()), colour, signed_text(100.0 * d.mean),
        signed_text(100.0 * d.low), signed_text(100.0 * d.high), d.n,
        c.over_budget ? kPairOverMark : "", c.bytes_ratio);
  }
  return fmt::format(
      "<div class=\"scroll\"><table><thead><tr><th>rival</th><th>its budget</th><th>budget of<br>"
      "{0}</th><th>{0}<br>minus rival</th><th>95&thinsp;% interval</th><th>pairs</th>"
      "<th>bytes of {0}<br>to the rival's</th></tr></thead><tbody>\n{1}</tbody></table></div>\n",
      escape_html(reference), body);
}

}  // namespace qevict
