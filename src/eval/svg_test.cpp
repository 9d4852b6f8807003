#include "eval/svg.h"

#include <gtest/gtest.h>

namespace qevict {
namespace {

using Ticks = std::vector<double>;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

PlotAxes make_axes(const std::string& title) {
  PlotAxes axes;
  axes.title = title;
  return axes;
}

TEST(Svg, LogTicksCoverTheirRange) {
  const Ticks ticks = log_ticks(4.9, 100.0);
  EXPECT_EQ(ticks.front(), 2.0);
  EXPECT_EQ(ticks.back(), 100.0);
  EXPECT_EQ(ticks.size(), 6U);  // 2 5 10 20 50 100
  EXPECT_EQ(log_ticks(0.3, 0.3).size(), 2U);
}

TEST(Svg, LinearTicksAreRound) {
  EXPECT_EQ(linear_ticks(0.0, 100.0, 5), (Ticks{0, 20, 40, 60, 80, 100}));
  EXPECT_EQ(linear_ticks(31.0, 58.0, 5), (Ticks{30, 40, 50, 60}));
  EXPECT_GE(linear_ticks(5.0, 5.001, 5).size(), 2U);
}

TEST(Svg, TextIsEscaped) {
  EXPECT_EQ(escape_html("a<b & \"c\" 'd'>"), "a&lt;b &amp; &quot;c&quot; &#39;d&#39;&gt;");
  PlotSeries s{{{10.0, 50.0, 0.0, "<script>"}}, "s", 0, false};
  const std::string plot = line_plot(make_axes("t<"), std::span(&s, 1));
  EXPECT_EQ(plot.find("<script>"), std::string::npos);
  EXPECT_NE(plot.find("t&lt;"), std::string::npos);
}

TEST(Svg, ASeriesIsALineWithItsPoints) {
  std::vector<PlotSeries> series(2);
  series[0].points = {{5.0, 10.0, 1.0, "p"}, {10.0, 30.0, 0.0, "q"}};
  series[1].points = {{100.0, 90.0, 0.0, "full"}};
  series[1].style = 13;
  const std::string plot = line_plot(make_axes("t"), series);
  EXPECT_EQ(count(plot, "<polyline"), 1U);
  EXPECT_EQ(count(plot, "<circle"), 3U);
  EXPECT_EQ(line_plot(make_axes("t"), std::span(series).first(0)), "");
  EXPECT_NE(legend_sample(13, false).find("stroke-dasharray"), std::string::npos);
}

TEST(Svg, AHeatMapLeavesMissingCellsEmpty) {
  const HeatMap map{"m", "length", "depth", {"1K", "2K"}, {"0", "50"}, {1.0, 0.5, 0.0, -1.0}};
  const std::string svg = heat_map(map);
  EXPECT_EQ(count(svg, "<rect"), 3U);
  EXPECT_NE(svg.find("hsl(120 "), std::string::npos);
  EXPECT_NE(svg.find("hsl(0 "), std::string::npos);
}

TEST(Svg, StackedSharesReachFromTheBottomUp) {
  const StackedPlot plot{
      "m", "step", "share", {0.0, 8.0}, {{"a", "red", {0.25, 0.5}}, {"b", "blue", {0.75, 0.5}}}};
  const std::string svg = stacked_plot(plot);
  EXPECT_EQ(count(svg, "<polygon"), 2U);
  EXPECT_EQ(stacked_plot({}), "");
}

}  // namespace
}  // namespace qevict
