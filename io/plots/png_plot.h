// Plots as PNG files: lines of several series over filled boxes, linear or logarithmic axes, ticks at round
// numbers, a legend.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <tilegrad/io/plots/image.h>

namespace tg::plot {

struct Series {
  std::string label;  // in the legend; "" leaves it out. A series without points labels the colour of boxes
  // Equally long. A point that is not finite (or beyond 1e300), or not positive on a log axis, is a gap.
  std::vector<double> x = {}, y = {};
  bool markers = false;             // a disc on every point
  bool faint = false;               // drawn thin and pale, for a noisy curve under its smoothed one
  std::optional<Color> color = {};  // by default from the palette, by index
};

// A filled rectangle between two corners, at least a pixel high and wide.
struct Box {
  double x0 = 0, y0 = 0, x1 = 0, y1 = 0;
  Color color{};
};

struct Plot {
  std::string title = {}, x_label = {}, y_label = {};  // UTF-8, characters of io/plots/plot_parts.h
  bool log_x = false, log_y = false;
  std::vector<Series> series = {};
  std::vector<Box> boxes = {};     // under the series; one with a corner that cannot be drawn is left out
  int width = 1200, height = 800;  // pixels; at least 320 × 240
  bool legend_beside = false;      // to the right of the axes, not inside them
};

// Colours that colour-blind readers can distinguish; they repeat after eight.
Color palette(std::size_t i);

// ShapeError when x and y of a series differ in length; Error for a size that cannot hold a plot.
Image draw_plot(const Plot& plot);
void save_plot(const std::string& path, const Plot& plot);

// The mean of each value of y with up to `half` values on either side; gaps (values that are not finite) stay
// gaps. Near the start the window shrinks on both sides, so that the mean follows a steep curve; at the end
// it shrinks on one side. Throws Error for a negative `half`.
std::vector<double> smoothed(const std::vector<double>& y, std::int64_t half);

}  // namespace tg::plot
