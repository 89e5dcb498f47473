// How long something takes that all ranks run.
#pragma once

#include <algorithm>
#include <vector>

#include "core/run/ranks.h"
#include "tools/bench/measure.h"

namespace tg::bench {

// As many on all ranks, which wait for each other: not as many as fit in some time.
struct RankRuns {
  int warm_up, runs, steps;
};

// Seconds of a step: the median of runs of steps that follow each other, once all ranks are there. start()
// begins a step and returns the Pending of it.
template <class F>
double seconds_of_step(Communicator& ranks, const RankRuns& counts, F&& start) {
  const auto run = [&](int count) {
    const double from = now();
    Pending last;
    for (int i = 0; i < count; ++i) last = start();
    last.wait();
    return (now() - from) / count;
  };
  run(counts.warm_up);
  gather_one(ranks, std::byte{});
  std::vector<double> seconds;
  for (int i = 0; i < counts.runs; ++i) seconds.push_back(run(counts.steps));
  std::nth_element(seconds.begin(), seconds.begin() + counts.runs / 2, seconds.end());
  return seconds[static_cast<std::size_t>(counts.runs / 2)];
}

// What all ranks do in a second, where this one takes `seconds` for `work`: each has such work of its own, or
// they do it together.
inline double rate_of_all(Communicator& ranks, double work, double seconds, bool together) {
  double rate = 0;
  for (const double s : gather_one(ranks, seconds)) rate += work / s;
  return together ? rate / ranks.size() : rate;
}

}  // namespace tg::bench
