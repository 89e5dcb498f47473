// The building blocks of plots: axes with ticks, and a stroke typeface.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/io/plots/image.h>

namespace tg::plot {

// ---- Axes: limits, and labeled ticks at round numbers

struct PlotTick {
  double value;
  std::string label;  // "" for a minor tick
};

struct PlotAxis {
  double lo = 0, hi = 1;  // limits; on a log axis, of log10 of the values
  bool log = false;
  std::vector<PlotTick> ticks;  // sorted by value, all within the limits

  double place(double value) const;  // 0 at lo, 1 at hi
};

// Returns an axis slightly longer than [lo, hi] (both positive if `log` is set), with at most about `count`
// labeled ticks.
PlotAxis make_plot_axis(double lo, double hi, bool log, int count);

// ---- A typeface of pen strokes, drawn for this project, so that plots need no font file. It contains ASCII,
// · × ± − – — ° µ √ ∞ ≤ ≥ ≈ ξ and the superscripts ⁰ to ⁹ and ⁻. Any other character is drawn as a box.

struct StrokedText {
  std::vector<Polyline> lines;  // relative to the left end of the baseline, y upwards
  float width = 0;
};

// Lays out one line of UTF-8 text. `size` is the line height; capital letters are 0.7 times as high.
StrokedText stroke_text(std::string_view utf8, float size);

// Stroke width at regular weight, as a fraction of the size.
inline constexpr float stroke_width = 0.078f;

}  // namespace tg::plot
