#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "eval/report_parts.h"
#include "eval/svg.h"

namespace qevict {
namespace {

struct Column {
  const char* field;
  const char* heading;
  bool percent;
};
constexpr std::array<Column, 11> kColumns = {{{"fmm", "missed mass<br>(FMM)", true},
                                              {"fmm_full_horizon", "FMM, whole<br>horizons", true},
                                              {"churn", "churn", false},
                                              {"share_full", "mass on<br>Full", true},
                                              {"share_quantized", "on<br>Quantized", true},
                                              {"share_evicted", "on<br>evicted", true},
                                              {"share_local", "on<br>local", true},
                                              {"qsa", "QSA", false},
                                              {"rq", "RQ", false},
                                              {"kl_mean", "KL to the<br>full cache", false},
                                              {"promotions", "promotions", false}}};

// Mean of what is defined.
struct Mean {
  double sum = 0.0;
  int n = 0;
  void add(const EvalJson& value) {
    if (!value.is_number()) return;
    sum += value.get<double>();
    ++n;
  }
  double value() const { return n > 0 ? sum / n : NAN; }
};

constexpr std::array<const char*, 4> kTiers = {"share_local", "share_full", "share_quantized",
                                               "share_evicted"};
using TierMeans = std::array<Mean, kTiers.size()>;

// One policy at one budget, over its lines.
struct Diagnosed {
  int samples = 0;
  std::map<std::string, Mean> means;  // by field
  std::map<int, TierMeans> by_step;   // of events
};

void add_events(const EvalJson& line, Diagnosed& d) {
  const auto steps = line.find("event_steps");
  const auto events = line.find("per_event");
  if (steps == line.end() || !steps->is_array() || events == line.end()) return;
  for (std::size_t tier = 0; tier < kTiers.size(); ++tier) {
    const auto values = events->find(kTiers[tier]);
    if (values == events->end() || !values->is_array()) continue;
    for (std::size_t i = 0; i < std::min(values->size(), steps->size()); ++i) {
      if ((*steps)[i].is_number_integer())
        d.by_step[(*steps)[i].get<int>()][tier].add((*values)[i]);
    }
  }
}

std::map<std::string, Diagnosed> collect(std::span<const std::string> lines) {
  std::map<std::string, Diagnosed> found;
  for (const std::string& text : lines) {
    const EvalJson line = EvalJson::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object() || !line.contains("policy") || !line["policy"].is_string() ||
        !line.contains("budget")) {
      continue;
    }
    const EvalJson& budget = line["budget"];
    Diagnosed& d = found[line["policy"].get<std::string>() + "\n" +
                         (budget.is_string() ? budget.get<std::string>() : budget.dump())];
    ++d.samples;
    for (const Column& column : kColumns) {
      if (const auto value = line.find(column.field); value != line.end()) {
        d.means[column.field].add(*value);
      }
    }
    add_events(line, d);
  }
  return found;
}

std::string mean_cell(const Diagnosed& d, const Column& column) {
  const auto mean = d.means.find(column.field);
  if (mean == d.means.end() || std::isnan(mean->second.value())) {
    return "<td class=\"dim\">&ndash;</td>";
  }
  const double value = mean->second.value();
  return column.percent ? fmt::format("<td>{:.1f}&thinsp;%</td>", 100.0 * value)
                        : fmt::format("<td>{:.4g}</td>", value);
}

std::string tier_plot(const std::string& title, const Diagnosed& d) {
  StackedPlot plot;
  plot.title = title;
  plot.x_label = "decode step of the event";
  plot.y_label = "share of attention";
  plot.layers = {{"local", "#adb5bd", {}},
                 {"Full", "#2f9e44", {}},
                 {"Quantized", "#f08c00", {}},
                 {"evicted", "#c92a2a", {}}};
  for (const auto& [step, means] : d.by_step) {
    if (std::ranges::any_of(means, [](const Mean& m) { return m.n == 0; })) continue;
    plot.x.push_back(step);
    for (std::size_t tier = 0; tier < kTiers.size(); ++tier) {
      plot.layers[tier].values.push_back(means[tier].value());
    }
  }
  return plot.x.size() < 2 ? "" : stacked_plot(plot);
}

constexpr const char* kTierLegend = R"(<div class="legend">
<span><svg width="12" height="12"><rect width="12" height="12" fill="#adb5bd"/></svg>local</span>
<span><svg width="12" height="12"><rect width="12" height="12" fill="#2f9e44"/></svg>Full</span>
<span><svg width="12" height="12"><rect width="12" height="12" fill="#f08c00"/></svg>Quantized</span>
<span><svg width="12" height="12"><rect width="12" height="12" fill="#c92a2a"/></svg>evicted</span></div>
)";

}  // namespace

std::string diagnostics_section(const RunSettings& settings, std::span<const std::string> lines) {
  const std::map<std::string, Diagnosed> found = collect(lines);
  if (found.empty()) return "";
  std::string head = "<th>policy</th><th>budget</th><th>n</th>";
  for (const Column& column : kColumns) head += fmt::format("<th>{}</th>", column.heading);
  std::string rows;
  std::string plots;
  for (const auto& entry : settings.policies) {
    const auto d = found.find(entry.policy + "\n" + budget_text(entry.budget));
    if (d == found.end()) continue;
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td>", escape_html(entry.policy),
                        escape_html(budget_text(entry.budget)), d->second.samples);
    for (const Column& column : kColumns) rows += mean_cell(d->second, column);
    rows += "</tr>\n";
    plots += tier_plot(fmt::format("{} at {}", entry.policy, budget_text(entry.budget)), d->second);
  }
  return fmt::format(
      "<h2>What the caches missed</h2>\n<p class=\"dim\">Along the full cache's own answers: the "
      "full "
      "cache's attention of the next 32 steps, by where a routing event had left the tokens; sinks "
      "left "
      "out. Means over events, layers and samples.</p>\n<div "
      "class=\"scroll\"><table><thead><tr>{}</tr>"
      "</thead><tbody>\n{}</tbody></table></div>\n{}<div class=\"plots\">{}</div>\n",
      head, rows, plots.empty() ? "" : kTierLegend, plots);
}

}  // namespace qevict
