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
  EXPECT_EQ(count(plot, "<circle"), 2U);
  EXPECT_EQ(count(plot, "<rect"), 1U) << "another shape where a colour comes again";
  EXPECT_EQ(line_plot(make_axes("t"), std::span(series).first(0)), "");
  EXPECT_NE(legend_sample(13, false).find("stroke-dasharray"), std::string::npos);
}

TEST(Svg, EqualScoresStillHaveAReadableAxis) {
  PlotSeries s{{{10.0, 0.0, 0.0, ""}, {20.0, 0.0, 0.0, ""}}, "s", 0, false};
  const std::string low = line_plot(make_axes("t"), std::span(&s, 1));
  EXPECT_NE(low.find(">5<"), std::string::npos) << low;
  for (PlotPoint& p : s.points) p.y = 100.0;
  const std::string high = line_plot(make_axes("t"), std::span(&s, 1));
  EXPECT_NE(high.find(">95<"), std::string::npos) << high;
  EXPECT_EQ(high.find(">105<"), std::string::npos) << high;
}

TEST(Svg, TheFrontLeavesOutWhatFewerBytesReach) {
  std::vector<PlotSeries> series(1);
  series[0].points = {{10.0, 50.0, 0.0, ""}, {20.0, 40.0, 0.0, ""}, {100.0, 90.0, 0.0, ""}};
  PlotAxes axes = make_axes("t");
  axes.front = true;
  const std::string plot = line_plot(axes, series);
  const std::size_t points = plot.find("points=\"", plot.find("class=\"front\"")) + 8;
  const std::string front = plot.substr(points, plot.find('"', points) - points);
  EXPECT_EQ(count(front, ","), 3U) << front;  // two points and the corner between them
}

TEST(Svg, LongTitlesStayInside) {
  const std::string folder(200, 'f');
  const std::string plot = line_plot(
      make_axes(folder + "/mine"), std::vector<PlotSeries>{{{{1.0, 1.0, 0.0, ""}}, "s", 0, false}});
  EXPECT_NE(plot.find("/mine</text>"), std::string::npos) << plot;
  EXPECT_EQ(plot.find(">" + folder), std::string::npos) << plot;
  const std::string map = heat_map({folder, "x", "y", {"1"}, {"1"}, {1.0}});
  EXPECT_NE(map.find(">" + folder + "<"), std::string::npos);
  EXPECT_EQ(map.find("width=\"220\""), std::string::npos);
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
