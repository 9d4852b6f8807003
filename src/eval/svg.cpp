#include "eval/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace qevict {
namespace {

// Twelve colours that can be told apart on white and on black; then they repeat with dashes.
constexpr std::array<std::string_view, 12> kColours = {"#d6336c", "#1c7ed6", "#f08c00", "#2f9e44",
                                                       "#7048e8", "#0c8599", "#a0522d", "#e8590c",
                                                       "#5c940d", "#ae3ec9", "#868e96", "#4263eb"};
constexpr std::array<std::string_view, 4> kDashes = {"", "6 3", "2 3", "8 3 2 3"};

constexpr int kLeft = 46, kRight = 12, kTop = 28, kBottom = 40;

// Maps values to the pixels of a plot.
struct Scale {
  double low = 0.0, high = 1.0;
  double from = 0.0, to = 1.0;
  bool log = false;

  double operator()(double value) const {
    const auto f = [this](double v) { return log ? std::log(v) : v; };
    const double span = f(high) - f(low);
    return from + (span > 0.0 ? (f(value) - f(low)) / span : 0.5) * (to - from);
  }
};

// Of a title in the plots' font, bold.
constexpr int kTitleCharacter = 8;

int title_width(const std::string& title) {
  return kLeft + kTitleCharacter * static_cast<int>(title.size());
}

// The end of a title says more than its beginning: a file's name, not its folder.
std::string short_title(const std::string& title, int width) {
  const auto room = static_cast<std::size_t>(std::max(width - kLeft, 0) / kTitleCharacter);
  if (title.size() <= room || room < 4) return title;
  std::size_t begin = title.size() - (room - 3);
  while (begin < title.size() && (title[begin] & 0xC0) == 0x80) ++begin;  // inside a character
  return "..." + title.substr(begin);
}

std::string open_svg(int width, int height, const std::string& title) {
  return fmt::format(
      "<svg viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" aria-label=\"{2}\">\n"
      "<text class=\"title\" x=\"{3}\" y=\"16\">{4}</text>\n",
      width, height, escape_html(title), kLeft, escape_html(short_title(title, width)));
}

std::string axis_labels(int width, int height, const std::string& x, const std::string& y) {
  return fmt::format(
      "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n"
      "<text x=\"12\" y=\"{}\" text-anchor=\"middle\" transform=\"rotate(-90 12 {})\">{}</text>\n",
      (kLeft + width - kRight) / 2, height - 6, escape_html(x), (kTop + height - kBottom) / 2,
      (kTop + height - kBottom) / 2, escape_html(y));
}

std::string grid(const Scale& x, const Scale& y, const std::vector<double>& x_ticks,
                 const std::vector<double>& y_ticks) {
  std::string out;
  for (const double t : x_ticks) {
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3:.1f}\" text-anchor=\"middle\">{4:g}</text>\n",
        x(t), y.from, y.to, y.from + 14, t);
  }
  for (const double t : y_ticks) {
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3:.1f}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>\n",
        x.from, x.to, y(t), x.from - 5, y(t) + 4, t);
  }
  return out;
}

std::string line_style(int style, bool strong) {
  const std::string_view dash =
      kDashes[(static_cast<std::size_t>(style) / kColours.size()) % kDashes.size()];
  return fmt::format("stroke=\"{}\" stroke-width=\"{}\" fill=\"none\"{}", series_colour(style),
                     strong ? 3 : 1.5,
                     dash.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", dash));
}

// One colour stands for several series: what has no line is told apart by its shape.
std::string mark(int style, double x, double y, double size, const std::string& label) {
  const std::string fill =
      fmt::format("fill=\"{}\"><title>{}</title>", series_colour(style), escape_html(label));
  switch ((static_cast<std::size_t>(style) / kColours.size()) % kDashes.size()) {
    case 1:
      return fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" {}</rect>\n",
          x - size, y - size, 2.0 * size, 2.0 * size, fill);
    case 2:
      return fmt::format("<path d=\"M{:.1f} {:.1f}l{:.1f} {:.1f}h{:.1f}z\" {}</path>\n", x,
                         y - 1.3 * size, 1.3 * size, 2.3 * size, -2.6 * size, fill);
    case 3:
      return fmt::format(
          "<path d=\"M{0:.1f} {1:.1f}l{2:.1f} {2:.1f}l-{2:.1f} {2:.1f}l-{2:.1f} -{2:.1f}z\" "
          "{3}</path>\n",
          x, y - 1.4 * size, 1.4 * size, fill);
    default:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" {}</circle>\n", x, y, size,
                         fill);
  }
}

std::string draw_series(const PlotSeries& s, const Scale& x, const Scale& y) {
  std::string line;
  std::string marks;
  for (const PlotPoint& p : s.points) {
    line += fmt::format("{:.1f},{:.1f} ", x(p.x), y(p.y));
    if (p.error > 0.0) {
      marks += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\" "
          "opacity=\"0.45\"/>",
          x(p.x), y(std::max(p.y - p.error, y.low)), y(std::min(p.y + p.error, y.high)),
          series_colour(s.style));
    }
    marks += mark(s.style, x(p.x), y(p.y), s.strong ? 4.5 : 3.0, p.label);
  }
  if (s.points.size() < 2) return marks;
  return fmt::format("<polyline points=\"{}\" {}><title>{}</title></polyline>\n{}", line,
                     line_style(s.style, s.strong), escape_html(s.label), marks);
}

// The best that no more bytes reach: steps along x.
std::string draw_front(std::span<const PlotSeries> series, const Scale& x, const Scale& y) {
  std::vector<PlotPoint> points;
  for (const PlotSeries& s : series) points.insert(points.end(), s.points.begin(), s.points.end());
  std::ranges::sort(points, {}, &PlotPoint::x);
  std::string steps;
  double best = -1e300;
  for (const PlotPoint& p : points) {
    if (p.y <= best) continue;
    if (!steps.empty()) steps += fmt::format("{:.1f},{:.1f} ", x(p.x), y(best));
    steps += fmt::format("{:.1f},{:.1f} ", x(p.x), y(p.y));
    best = p.y;
  }
  return fmt::format(
      "<polyline class=\"front\" points=\"{}\"><title>best score for no more bytes</title>"
      "</polyline>\n",
      steps);
}

// Low and high of all points with their bars, which stay within 0..100 or the points' own range.
std::pair<double, double> y_range(std::span<const PlotSeries> series) {
  constexpr double kLeastSpan = 5.0;
  double low = 1e300, high = -1e300;
  for (const PlotSeries& s : series) {
    for (const PlotPoint& p : s.points) {
      low = std::min({low, p.y, std::max(p.y - p.error, 0.0)});
      high = std::max({high, p.y, std::min(p.y + p.error, 100.0)});
    }
  }
  if (high - low >= kLeastSpan) return {low, high};
  if (low + kLeastSpan <= 100.0) return {low, low + kLeastSpan};
  return {high - kLeastSpan, high};
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string_view series_colour(int style) {
  return kColours[static_cast<std::size_t>(style) % kColours.size()];
}

std::string legend_sample(int style, bool strong) {
  return fmt::format(
      "<svg width=\"30\" height=\"12\"><line x1=\"1\" x2=\"29\" y1=\"6\" y2=\"6\" {}/>"
      "{}</svg>",
      line_style(style, strong), mark(style, 15.0, 6.0, 3.0, ""));
}

std::vector<double> log_ticks(double low, double high) {
  constexpr std::array<double, 3> kSteps = {1.0, 2.0, 5.0};
  std::vector<double> ticks;
  int power = static_cast<int>(std::floor(std::log10(low)));
  double last = 0.0;
  for (; last < high && ticks.size() < 64; ++power) {
    for (const double step : kSteps) {
      const double next = step * std::pow(10.0, power);
      // The first one is at or below the lowest value.
      if (next <= low * (1.0 + 1e-9)) ticks.clear();
      if (last < high * (1.0 - 1e-9)) ticks.push_back(last = next);
    }
  }
  return ticks;
}

std::vector<double> linear_ticks(double low, double high, int count) {
  const double rough = std::max(high - low, 1e-9) / std::max(count, 1);
  const double base = std::pow(10.0, std::floor(std::log10(rough)));
  double step = base * 10.0;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (base * factor >= rough * (1.0 - 1e-9)) step = base * factor;
  }
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9);
  for (double i = first; ticks.empty() || ticks.back() < high - 1e-9 * step; ++i) {
    ticks.push_back(i * step);
  }
  return ticks;
}

std::string line_plot(const PlotAxes& axes, std::span<const PlotSeries> series) {
  double x_low = 1e300, x_high = -1e300;
  for (const PlotSeries& s : series) {
    for (const PlotPoint& p : s.points) {
      x_low = std::min(x_low, p.x);
      x_high = std::max(x_high, p.x);
    }
  }
  if (x_low > x_high) return "";
  const auto [y_low, y_high] = y_range(series);
  const std::vector<double> x_ticks = log_ticks(x_low, x_high);
  const std::vector<double> y_ticks = linear_ticks(y_low, y_high, 5);
  const Scale x{x_ticks.front(), x_ticks.back(), static_cast<double>(kLeft),
                static_cast<double>(axes.width - kRight), true};
  const Scale y{y_ticks.front(), y_ticks.back(), static_cast<double>(axes.height - kBottom),
                static_cast<double>(kTop)};
  std::string out = open_svg(axes.width, axes.height, axes.title);
  out += grid(x, y, x_ticks, y_ticks);
  out += axis_labels(axes.width, axes.height, axes.x_label, axes.y_label);
  if (axes.guide >= y.low && axes.guide <= y.high) {
    out += fmt::format(
        "<line class=\"guide\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"><title>{}"
        "</title></line>\n",
        x.from, x.to, y(axes.guide), y(axes.guide), escape_html(axes.guide_label));
  }
  if (axes.front) out += draw_front(series, x, y);
  for (const bool strong : {false, true}) {
    for (const PlotSeries& s : series) {
      if (s.strong == strong) out += draw_series(s, x, y);
    }
  }
  return out + "</svg>\n";
}

std::string heat_map(const HeatMap& map) {
  constexpr int kCell = 34, kRowHeight = 22, kLabels = 64;
  const int width = kLabels + kCell * static_cast<int>(map.columns.size()) + kRight;
  const int height = kTop + kRowHeight * static_cast<int>(map.rows.size()) + kBottom;
  std::string out = open_svg(std::max({width, 220, title_width(map.title)}), height, map.title);
  for (std::size_t r = 0; r < map.rows.size(); ++r) {
    const int top = kTop + kRowHeight * static_cast<int>(r);
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kLabels - 5,
                       top + 15, escape_html(map.rows[r]));
    for (std::size_t c = 0; c < map.columns.size(); ++c) {
      const double value = map.values[r * map.columns.size() + c];
      if (value < 0.0) continue;
      const int left = kLabels + kCell * static_cast<int>(c);
      // From red over yellow to green.
      out += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"hsl({:.0f} 65% 55%)\"/>"
          "<text class=\"cell\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{:.0f}</text>\n",
          left, top, kCell - 1, kRowHeight - 1, 120.0 * std::min(value, 1.0), left + kCell / 2,
          top + 15, 100.0 * value);
    }
  }
  for (std::size_t c = 0; c < map.columns.size(); ++c) {
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                       kLabels + kCell * static_cast<int>(c) + kCell / 2, height - kBottom + 14,
                       escape_html(map.columns[c]));
  }
  return out + axis_labels(width, height, map.x_label, map.y_label) + "</svg>\n";
}

std::string stacked_plot(const StackedPlot& plot) {
  constexpr int kWidth = 400, kHeight = 220;
  if (plot.x.empty()) return "";
  const Scale x{plot.x.front(), plot.x.back(), static_cast<double>(kLeft),
                static_cast<double>(kWidth - kRight)};
  const Scale y{0.0, 1.0, static_cast<double>(kHeight - kBottom), static_cast<double>(kTop)};
  std::string out = open_svg(std::max(kWidth, title_width(plot.title)), kHeight, plot.title);
  std::vector<double> below(plot.x.size(), 0.0);
  for (const StackedPlot::Layer& layer : plot.layers) {
    std::string top;
    std::string bottom;
    for (std::size_t i = 0; i < plot.x.size(); ++i) {
      bottom = fmt::format("{:.1f},{:.1f} ", x(plot.x[i]), y(below[i])) + bottom;
      below[i] += layer.values[i];
      top += fmt::format("{:.1f},{:.1f} ", x(plot.x[i]), y(below[i]));
    }
    out += fmt::format("<polygon points=\"{}{}\" fill=\"{}\"><title>{}</title></polygon>\n", top,
                       bottom, layer.colour, escape_html(layer.label));
  }
  std::vector<double> x_ticks = linear_ticks(plot.x.front(), plot.x.back(), 6);
  std::erase_if(x_ticks, [&](double t) { return t < plot.x.front() || t > plot.x.back(); });
  out += grid(x, y, x_ticks, {0.0, 0.25, 0.5, 0.75, 1.0});
  return out + axis_labels(kWidth, kHeight, plot.x_label, plot.y_label) + "</svg>\n";
}

}  // namespace qevict
