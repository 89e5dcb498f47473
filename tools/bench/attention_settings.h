// What the mode `attention` of bench is told by options of its own.
#pragma once

#include "tools/bench/attention_cell.h"

namespace tg::bench {

struct AttentionSettings {
  std::vector<AttentionCell> cells;  // to measure
  bool whole_suite = false;          // the cells are those that the device measures by default
  bool by_token = false;             // q, k and v are [B, L, H, d] in memory, as a projection leaves them
  AttentionKernels kernels = AttentionKernels::best;
  std::string plot;  // also draw the rates into this file
  std::string once;  // only run this program of each cell, once, for a profiler
};

}  // namespace tg::bench
