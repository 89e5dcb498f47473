// Plots as PNG files: several series of lines over filled boxes, with linear or logarithmic axes, ticks at
// round numbers and a legend.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <tilegrad/io/plots/image.h>

namespace tg::plot {

// One curve of a plot.
struct Series {
  std::string label;  // in the legend; "" omits it. A series without points labels a color of boxes
  // x and y must have the same length. A point is a gap if it is not finite, is beyond 1e300, or is not
  // positive on a log axis.
  std::vector<double> x = {}, y = {};
  bool markers = false;             // draw a disc at every point
  bool faint = false;               // thin and pale, for a noisy curve under its smoothed one
  std::optional<Color> color = {};  // default: palette() at its index
};

// A filled rectangle, at least one pixel high and wide.
struct Box {
  double x0 = 0, y0 = 0, x1 = 0, y1 = 0;  // two opposite corners, in data coordinates
  Color color{};                          // black by default
};

// A plot with its axes.
struct Plot {
  std::string title = {}, x_label = {}, y_label = {};  // UTF-8; for the characters see io/plots/plot_parts.h
  bool log_x = false, log_y = false;                   // logarithmic axes
  std::vector<Series> series = {};                     // in drawing order
  std::vector<Box> boxes = {};     // under the series; a box with a corner that cannot be drawn is omitted
  int width = 1200, height = 800;  // pixels; at least 320 × 240
  bool legend_outside = false;     // legend to the right of the axes, not inside them
};

// Returns color i of a palette for color-blind readers. It repeats after eight colors.
Color palette(std::size_t i);

// Draws a plot. Throws ShapeError if x and y of a series differ in length, and Error for a size that cannot
// hold a plot.
Image draw_plot(const Plot& plot);
// Draws a plot and saves it as PNG. Throws as draw_plot() and Image::save_png() do.
void save_plot(const std::string& path, const Plot& plot);

// Returns the mean of each value of y with up to `half` values on either side. Values that are not finite are
// gaps and stay gaps. Near the start, the window shrinks on both sides, so that the mean follows a steep
// curve. At the end, it shrinks on one side. Throws Error for a negative `half`.
std::vector<double> smoothed(const std::vector<double>& y, std::int64_t half);

}  // namespace tg::plot
