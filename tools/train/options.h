// The command line of tools/train.
#pragma once

#include <tilegrad/core/base/device.h>
#include "tools/model_options.h"
#include "tools/train/data.h"
#include "tools/train/lora.h"
#include "tools/train/optimizer.h"

namespace tg {

struct TrainOptions : ModelOptions {
  DataOptions data;
  std::string from;  // a Hugging Face folder; empty: a new model
  std::string out = "out/train", backend = "cpu", dtype = "f32", memory_budget;
  Device device;           // of `backend`
  std::size_t budget = 0;  // bytes of `memory_budget`; 0: none
  std::int64_t batch = 12, steps = 2000, seed = 1, threads = 0, context_parallel = 1, zero = 1;
  LoraTraining lora;
  OptimizerOptions learning;
  std::int64_t eval_every = 250, eval_batches = 20, save_every = 250, sample = 400, profile = 0;
  bool resume = false, overwrite = false, recompute = false, trap_nan = false;
};

// Every option with its help and its limits, and the examples.
void declare_options(Args& args, TrainOptions& o);
// What does not fit --context-parallel, as a mistake; empty if nothing. `ranks`: how many there are.
std::string mistake_in_context_parallel(const TrainOptions& o, int ranks);
// The first option on the command line that a model from a folder does not have, as a mistake; empty if there
// is none.
std::string not_for_from(const Args& args, TrainOptions& o);

}  // namespace tg
