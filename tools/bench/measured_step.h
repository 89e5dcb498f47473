// A model's training step of this library's, measured.
#pragma once

#include "tools/bench/model_flops.h"
#include "tools/bench/step_picture.h"
#include "tools/bench/step_times.h"
#include "tools/bench/torch_training.h"

namespace tg::bench {

struct MeasuredStep {
  std::int64_t parameters = 0;
  std::size_t weights = 0;  // bytes of these
  MemoryReport memory = {};
  std::int64_t loss_chunks = 1;
  ModelFlops flops = {};
  FirstSteps first = {};
  StepTimes times = {};
  std::vector<FamilyTime> families = {};  // of kernels one by one
  StepPicture picture = {};
};

// Of settings.train. Throws OutOfMemory if the batch does not fit. Nothing of the model remains in memory.
MeasuredStep measure_step(const Settings& settings, const Machine& machine);
inline constexpr std::uint64_t weights_seed = 0;  // of the initial weights

}  // namespace tg::bench
