// Times programs on a GPU with cold caches and without waiting for the host: one run at a time, or several
// calls in a CUDA graph.
#pragma once

#include <optional>

#include "tools/bench/measure.h"

namespace tg::bench {

class ColdRuns {
 public:
  explicit ColdRuns(const Settings& settings);

  // Median seconds, by the GPU's clock, of the runs of half of `settings.seconds`, after a tenth of it to
  // warm up: 150 and 30 ms by default. Before each run `settings.copy_bytes` are moved, which leaves nothing
  // of it in the caches. That is in the queue when the run is, so the GPU goes from one to the other.
  double median(Program& program);

  // How many calls that read so many bytes a program needs for all to find cold caches: by the time that the
  // first is run again, `settings.copy_bytes` have been read.
  int calls(double bytes) const;
  // Median seconds of a call of a program of so many, which are one CUDA graph. Runs are queued
  // for 10 ms at a time, so that the host's part in it is small.
  double median_in_graph(Program& program, int calls, const Tensor& output);

 private:
  double one_run(Program& program);
  double seconds_, bytes_;
  std::optional<Program> flush_;
};

}  // namespace tg::bench
