#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "eval/report_parts.h"
#include "eval/svg.h"

namespace qevict {
namespace {

// More of them need larger plots.
constexpr std::size_t kManyPolicies = 8;

// Policies of a run in their order, each once: its place is its style.
std::vector<std::string> policy_names(const RunSettings& settings) {
  std::vector<std::string> names;
  for (const auto& entry : settings.policies) {
    if (std::ranges::find(names, entry.policy) == names.end()) names.push_back(entry.policy);
  }
  return names;
}

std::string point_label(const ScoreRow& row) {
  return fmt::format("{}{}: {:.1f} +- {:.1f}, {} ({:.1f} %)", row.policy,
                     row.budget ? " at " + row.budget->to_string() : std::string(),
                     100.0 * row.score, 100.0 * row.stderr_of_mean, bytes_text(row.kv_bytes),
                     100.0 * row.kv_bytes / row.full_cache_bytes);
}

std::string score_plot(const TaskTable& table, const std::vector<std::string>& names,
                       const std::string& reference) {
  std::vector<PlotSeries> series;
  for (std::size_t i = 0; i < names.size(); ++i) {
    PlotSeries s;
    s.label = names[i];
    s.style = static_cast<int>(i);
    s.strong = names[i] == reference;
    for (const ScoreRow& row : table.rows) {
      if (row.policy != names[i] || row.kv_bytes <= 0.0 || row.full_cache_bytes <= 0.0) continue;
      s.points.push_back({100.0 * row.kv_bytes / row.full_cache_bytes, 100.0 * row.score,
                          100.0 * row.stderr_of_mean, point_label(row)});
    }
    std::ranges::sort(s.points, {}, &PlotPoint::x);
    series.push_back(std::move(s));
  }
  PlotAxes axes;
  axes.title = table.task.empty() ? "average" : table.task;
  axes.x_label = "measured KV bytes, % of the full cache";
  axes.y_label = "score";
  axes.front = true;
  if (names.size() > kManyPolicies) {
    axes.width = 570;
    axes.height = 420;
  }
  for (const ScoreRow& row : table.rows) {
    if (row.policy != "full") continue;
    axes.guide = 100.0 * row.score;
    axes.guide_label = "full cache";
  }
  return line_plot(axes, series);
}

struct NeedlePlace {
  int length = 0, depth = 0;
  auto operator<=>(const NeedlePlace&) const = default;
};

// "length=4096,depth=50%"
std::optional<NeedlePlace> parse_needle(const std::string& id) {
  constexpr std::string_view kLength = "length=", kDepth = ",depth=";
  NeedlePlace place;
  const char* end = id.data() + id.size();
  if (!id.starts_with(kLength)) return std::nullopt;
  const auto length = std::from_chars(id.data() + kLength.size(), end, place.length);
  if (length.ec != std::errc{} || !std::string_view(length.ptr, end).starts_with(kDepth)) {
    return std::nullopt;
  }
  const auto depth = std::from_chars(length.ptr + kDepth.size(), end, place.depth);
  if (depth.ec != std::errc{} || std::string_view(depth.ptr, end) != "%") return std::nullopt;
  return place;
}

std::string needle_map(const std::string& title,
                       const std::map<NeedlePlace, std::vector<double>>& scores) {
  std::set<int> lengths, depths;
  for (const auto& [place, values] : scores) {
    lengths.insert(place.length);
    depths.insert(place.depth);
  }
  HeatMap map{title, "tokens", "depth", {}, {}, {}};
  for (const int length : lengths) map.columns.push_back(std::to_string(length));
  for (const int depth : depths) {
    map.rows.push_back(fmt::format("{} %", depth));
    for (const int length : lengths) {
      const auto values = scores.find({length, depth});
      map.values.push_back(values == scores.end() ? -1.0 : mean(values->second));
    }
  }
  return heat_map(map);
}

}  // namespace

std::string needle_maps(const RunSettings& settings, std::span<const CellResult> cells) {
  std::string maps;
  for (const auto& entry : settings.policies) {
    std::map<NeedlePlace, std::vector<double>> scores;
    for (const CellResult& cell : cells) {
      if (cell.policy != entry.policy || budget_text(cell.budget) != budget_text(entry.budget)) {
        continue;
      }
      if (const auto place = parse_needle(cell.id)) scores[*place].push_back(cell.score);
    }
    if (scores.empty()) continue;
    maps +=
        needle_map(entry.budget ? fmt::format("{} at {}", entry.policy, entry.budget->to_string())
                                : entry.policy,
                   scores);
  }
  return maps.empty() ? "" : fmt::format("<div class=\"plots\">{}</div>\n", maps);
}

std::string score_plots(const RunSettings& settings, const Summary& summary) {
  const std::vector<std::string> names = policy_names(settings);
  std::string legend;
  for (std::size_t i = 0; i < names.size(); ++i) {
    legend += fmt::format("<span>{}{}</span>\n",
                          legend_sample(static_cast<int>(i), names[i] == summary.reference),
                          escape_html(names[i]));
  }
  legend +=
      "<span><svg width=\"30\" height=\"12\"><line class=\"front\" x1=\"1\" x2=\"29\" y1=\"6\" "
      "y2=\"6\"/></svg>best score for no more bytes</span>\n";
  std::string plots;
  if (summary.average) plots += score_plot(*summary.average, names, summary.reference);
  for (const TaskTable& table : summary.tasks) {
    plots += score_plot(table, names, summary.reference);
  }
  return fmt::format("<div class=\"legend\">{}</div>\n<div class=\"plots\">{}</div>\n", legend,
                     plots);
}

}  // namespace qevict
