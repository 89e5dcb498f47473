// How far ranks scale: rows of several runs of `bench ranks`, each of another number of ranks, as one
// picture.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <tilegrad/io/plots/image.h>

namespace tg::bench {

// A row that runs have in common, by the number of ranks.
struct ScalingRow {
  std::string label;               // what is measured, and its shape
  std::map<int, double> by_ranks;  // times as fast as one rank alone, or GB/s of each rank
};

struct Scaling {
  std::string machine;
  std::vector<int> ranks;                // of the runs, in order
  std::vector<ScalingRow> times, rates;  // steps and ring attention; exchanges of data
};

// From files that `bench ranks --json` wrote. Throws Error for one that cannot be read or is none, for runs
// on different machines, for a row that two runs of as many ranks have, and if there is no row.
Scaling read_scaling(const std::vector<std::string>& files);

// A bar for each number of ranks. On those of `times` stands the share of perfect scaling, which a line
// marks.
plot::Image draw_scaling(const Scaling& scaling);

}  // namespace tg::bench
