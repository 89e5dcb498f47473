// Command-line options of tools/train.
#pragma once

#include <memory>
#include <string>

#include <tilegrad/nn/models/lora.h>
#include <tilegrad/nn/optimizers/optimizer.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include "tools/common_options.h"
#include "tools/model_options.h"
#include "tools/train/data.h"

namespace tg {

// Options of --lora.
struct LoraTraining {
  std::int64_t rank = 0;  // 0: train the whole model
  double alpha = 0;       // 0: twice the rank
  double dropout = 0;
  std::string targets;  // comma-separated names; empty: all Linear layers except the head

  nn::LoraOptions options(std::uint64_t seed) const;
};

void declare_lora_options(Args& args, LoraTraining& o);
// Returns a message if the options contradict each other, otherwise "".
std::string mistake_in_lora(const Args& args, const LoraTraining& o, bool has_base);

struct OptimizerOptions {
  std::string optimizer = "adamw", schedule = "cosine";
  double lr = 1e-3, min_lr = 1e-4, decay_part = 0.2;
  double weight_decay = 0.1, clip = 1, momentum = 0.9;
  bool nesterov = false;
  std::int64_t warmup = 100, accumulate = 1;
};

void declare_optimizer_options(Args& args, OptimizerOptions& o);
// Sets the defaults of options that are not on the command line. They depend on the other options. If
// `is_tuned` is set (fine-tuning), the default learning rate is lower. Returns a message if valid options
// contradict each other, otherwise "".
std::string settle_optimizer(const Args& args, OptimizerOptions& o, bool is_tuned);

optim::Schedule schedule_of(const OptimizerOptions& o, std::int64_t steps);
std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerOptions& o,
                                                 const std::vector<Parameter>& parameters,
                                                 const std::optional<optim::LossScale>& loss_scale,
                                                 nn::Precision precision,
                                                 std::shared_ptr<Communicator> ranks = {});
// Describes the options, such as "adamw, lr 0.001 → 0.0001 (cosine) after 100 steps of warm-up".
std::string description(const OptimizerOptions& o, std::int64_t steps);

struct TrainOptions : ModelOptions, DeviceOptions {
  DataOptions data;
  std::string base;  // --model: a Hugging Face folder or a GGUF file; empty: a new model
  std::string out = "out/train", memory_budget;
  std::size_t budget = 0;  // bytes of `memory_budget`; 0: none
  std::int64_t batch = 12, steps = 2000, seed = 1, context_parallel = 1, zero = 1;
  LoraTraining lora;
  OptimizerOptions learning;
  std::int64_t eval_every = 250, eval_batches = 20, save_every = 250, sample = 400, profile = 0;
  bool resume = false, overwrite = false, recompute = false, trap_nan = false;
};

// Declares every option with its help and limits, and the examples.
void declare_options(Args& args, TrainOptions& o);
// Returns a message if an option cannot be used with --context-parallel, otherwise "". `ranks` is the number
// of ranks.
std::string mistake_in_context_parallel(const TrainOptions& o, int ranks);

}  // namespace tg
