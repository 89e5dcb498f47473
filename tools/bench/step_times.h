// How long a training step takes.
#pragma once

#include <vector>

#include <tilegrad/train/training.h>
#include "tools/bench/machine.h"

namespace tg::bench {

// The data of a step: ids that are spread over the vocabulary, the same in every run.
struct TrainBatch {
  std::vector<std::int32_t> tokens, targets;
  TrainBatch(std::int64_t rows, std::int64_t context, std::int64_t vocabulary);
};

struct StepTimes {
  double best, median;       // seconds; on a GPU of steps that follow each other, 20 before the host waits
  double host, host_median;  // of these, for which a step keeps the host busy
  double peak;               // GFLOP/s of products: on the CPU the highest of measurements between the steps
  int runs;
};
inline constexpr double bench_learning_rate = 1e-4;
StepTimes time_steps(train::TrainingProgram& training, const TrainBatch& batch, int threads,
                     const Settings& settings, const Machine& machine);

}  // namespace tg::bench
