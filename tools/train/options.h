// The command line of tools/train.
#pragma once

#include <string>

#include <tilegrad/core/base/device.h>
#include <tilegrad/nn/models/lora.h>
#include "tools/args.h"
#include "tools/model_options.h"
#include "tools/train/data.h"
#include "tools/train/optimizer.h"

namespace tg {

// Options of --lora.
struct LoraTraining {
  std::int64_t rank = 0;  // 0: the whole model is trained
  double alpha = 0;       // 0: twice the rank
  double dropout = 0;
  std::string targets;  // names between commas; empty: all Linear layers but the head

  nn::LoraOptions options(std::uint64_t seed) const;
};

void declare_lora_options(Args& args, LoraTraining& o);
// What is wrong with a combination of options, or nothing.
std::string mistake_in_lora(const Args& args, const LoraTraining& o, bool has_base);

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
