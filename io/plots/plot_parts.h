// The parts from which plots are drawn: axes with ticks, and a typeface of strokes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/io/plots/image.h>

namespace tg::plot {

// ---- Axes: their ends, and ticks at round numbers with labels

struct PlotTick {
  double value;
  std::string label;  // "" for a minor tick
};

struct PlotAxis {
  double lo = 0, hi = 1;  // the ends; of log10 of the values on a log axis
  bool log = false;
  std::vector<PlotTick> ticks;  // by value, all within the ends

  double place(double value) const;  // 0 at lo, 1 at hi
};

// An axis a little longer than [lo, hi] (both positive when log), with about `count` labelled ticks at most.
PlotAxis make_plot_axis(double lo, double hi, bool log, int count);

// ---- A typeface of pen strokes, drawn for this project, so that plots carry text without any font file. It
// has ASCII, · × ± − – — ° µ √ ∞ ≤ ≥ ≈ ξ and the superscripts ⁰ to ⁹ and ⁻; anything else shows as a box.

struct StrokedText {
  std::vector<Polyline> lines;  // from the baseline's left end, y upwards
  float width = 0;
};

// Lays out one line of UTF-8 text. `size` is the height of a line; capitals are 0.7 · size high.
StrokedText stroke_text(std::string_view utf8, float size);

// The width of the strokes at regular weight, as a part of the size.
inline constexpr float stroke_width = 0.078f;

}  // namespace tg::plot
