// The axes of a plot: their ends, and ticks at round numbers with labels.
#pragma once

#include <string>
#include <vector>

namespace tg::plot {

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

}  // namespace tg::plot
