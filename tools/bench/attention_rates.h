// The rates of cells, beside PyTorch's: as a table with geometric means, and as bars.
#pragma once

#include <tilegrad/io/plots/image.h>
#include "tools/bench/measure.h"

namespace tg::bench {

// TFLOP/s; NaN where a comparator was not measured or refuses the call.
struct AttentionRates {
  std::string name, shape;
  bool backward = false;
  double ours = 0, share = Row::none, cudnn = Row::none, flash = Row::none;
};

// Ours, the share of a matrix product's rate and, if `compares`, PyTorch's with the ratios ours / theirs.
std::string rates_table(const std::vector<AttentionRates>& rates, bool compares);

// Of all x that are numbers; NaN if none is.
double geometric_mean(const std::vector<double>& values);

// Bars for each cell, the forward above the backward.
plot::Image draw_rates(const std::vector<AttentionRates>& rates, const std::string& title);

}  // namespace tg::bench
