// Times programs on a GPU one run at a time, each with cold caches and without waiting for the host.
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

 private:
  double one_run(Program& program);
  double seconds_;
  std::optional<Program> flush_;
};

}  // namespace tg::bench
