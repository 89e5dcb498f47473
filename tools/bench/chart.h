// Shared parts of bench's charts: colors, axes with ticks, legends, and panels of bars.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <tilegrad/io/plots/image.h>
#include "io/plots/plot_parts.h"

namespace tg::bench {

inline constexpr plot::Color chart_paper{255, 255, 255}, chart_ink{34, 38, 46}, chart_soft{92, 98, 110},
    chart_grid{226, 229, 234};
inline constexpr float tick_size = 20;

inline int whole(float v) {
  return static_cast<int>(std::lround(v));
}

// A string in a chart. It is drawn in ink if no color is given.
struct Label {
  float size;
  plot::Color color = chart_ink;
  plot::TextStyle::Align align = plot::TextStyle::Align::left;
};
void draw_text(plot::Image& image, float x, float y, const std::string& text, const Label& label);
// Draws text from bottom to top, with its center at (x, y).
void draw_upwards(plot::Image& image, float x, float y, const std::string& text, float size);

// An axis that starts at 0, for bar charts.
plot::PlotAxis axis_from_zero(double highest, int ticks);

// Draws a horizontal grid line for each labeled tick of a vertical axis. The labels end `gap` pixels before
// the lines. y_of(value) returns the pixel row of a value.
template <class F>
void draw_grid(plot::Image& image, const plot::PlotAxis& axis, int left, int right, const F& y_of, int gap,
               int drop) {
  for (const plot::PlotTick& t : axis.ticks) {
    if (t.label.empty()) continue;
    const int y = y_of(t.value);
    image.fill(left, y, right, y + 1, chart_grid);
    draw_text(image, static_cast<float>(left - gap), static_cast<float>(y + drop), t.label,
              {tick_size, chart_soft, plot::TextStyle::Align::right});
  }
}

// Draws a tick and a label below a chart for each tick from 0 to `most`. x_of(value) returns the pixel column
// of a value.
template <class F>
void draw_ticks_below(plot::Image& image, const plot::PlotAxis& axis, double most, const F& x_of, float below,
                      float drop) {
  for (const plot::PlotTick& t : axis.ticks) {
    if (t.label.empty() || t.value < 0 || t.value > most) continue;
    const float x = x_of(t.value);
    image.line({x, below}, {x, below + 8}, 1.8f, chart_soft);
    draw_text(image, x, below + drop, t.label, {tick_size, chart_soft, plot::TextStyle::Align::center});
  }
}

// ---- Bar charts: groups of bars side by side, with a name below each group

struct Bar {
  std::size_t index;  // in its group
  double value;       // a value that is not finite has no bar
  plot::Color color;
  // If set, a line is drawn at this value. A number above the bar shows the share of this value that the bar
  // reaches.
  double perfect = std::numeric_limits<double>::quiet_NaN();
};

struct BarGroup {
  std::string name;
  std::vector<Bar> bars;
};

struct BarPanel {
  std::string unit, remark;
  double highest;
  int bars, bar, space, between, margin;  // numbers and widths in pixels: bars per group, width of a bar, and
                                          // gaps
  std::vector<BarGroup> groups = {};

  static constexpr int left = 110, high = 380;
  int group() const { return bars * bar + between; }
  void draw(plot::Image& image, int width, int bottom) const;
};
int height_of_names(const std::vector<BarGroup>& groups);

struct LegendEntry {
  std::string name;
  plot::Color color;
  int width;
};
// Draws a title with its baseline at y, and a legend below it.
void draw_head(plot::Image& image, int y, const std::string& title, const std::vector<LegendEntry>& legend);

}  // namespace tg::bench
