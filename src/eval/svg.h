// Plots as inline SVG for the report. Pure; text is escaped.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qevict {

// For text and attributes of HTML and SVG.
std::string escape_html(std::string_view text);

struct PlotPoint {
  double x = 0.0, y = 0.0;
  double error = 0.0;  // half the length of the bar; 0: none
  std::string label;   // shown when the pointer is on it
};

struct PlotSeries {
  std::vector<PlotPoint> points;  // joined by a line, in this order
  std::string label;
  int style = 0;        // colour, dashes and shape; equal in all plots of a report
  bool strong = false;  // drawn thick, on top
};

// The colour, the dashes and the shape of a style, for the line and for a legend.
std::string_view series_colour(int style);
std::string legend_sample(int style, bool strong);

struct PlotAxes {
  std::string title, x_label, y_label;
  int width = 372, height = 260;
  bool front = false;   // also a line of the best y that no larger x reaches
  double guide = -1.0;  // >= 0: a dashed line across at this y
  std::string guide_label;
};

// x on a logarithmic axis (values above 0), y on a linear one that fits the points: scores.
std::string line_plot(const PlotAxes& axes, std::span<const PlotSeries> series);

// Cells coloured by their value, 0..1; a negative value leaves its cell empty.
struct HeatMap {
  std::string title, x_label, y_label;
  std::vector<std::string> columns, rows;
  std::vector<double> values;  // [rows][columns]
};
std::string heat_map(const HeatMap& map);

// Shares that add up to at most 1, stacked from the bottom, along x.
struct StackedPlot {
  std::string title, x_label, y_label;
  std::vector<double> x;
  struct Layer {
    std::string label, colour;
    std::vector<double> values;  // [x]
  };
  std::vector<Layer> layers;
};
std::string stacked_plot(const StackedPlot& plot);

// Ticks at 1, 2 and 5 times powers of ten that cover low..high with at least two.
std::vector<double> log_ticks(double low, double high);
// About `count` round steps that cover low..high.
std::vector<double> linear_ticks(double low, double high, int count);

}  // namespace qevict
