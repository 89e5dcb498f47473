// Line plots as PNG files: several series, linear or logarithmic axes, ticks at round numbers, a legend.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/image.h"

namespace tg {

struct Series {
  std::string label;  // in the legend; "" for none
  // Equally long. A point that is not finite (or beyond 1e300), or not positive on a log axis, is a gap.
  std::vector<double> x, y;
  bool markers = false;        // a disc on every point
  bool faint = false;          // drawn thin and pale, as a noisy curve under its smoothed one
  std::optional<Color> color;  // from the palette, by place, when not given
};

struct Plot {
  std::string title, x_label, y_label;  // UTF-8, characters of io/stroke_font.h
  bool log_x = false, log_y = false;
  std::vector<Series> series;
  int width = 1200, height = 800;  // pixels; at least 320 × 240
};

// Colours that stay apart for the colour-blind; repeats after eight.
Color palette(std::size_t i);

// ShapeError when x and y of a series differ in length; Error for a size that cannot hold a plot.
Image draw_plot(const Plot& plot);
void save_plot(const std::string& path, const Plot& plot);

// The exponentially weighted mean of y with the weight of the start corrected; gaps stay gaps.
std::vector<double> smoothed(const std::vector<double>& y, double keep);

}  // namespace tg
