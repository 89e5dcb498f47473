// The optimizer of tools/train and its learning rate.
#pragma once

#include <memory>

#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/nn/optimizers/optimizer.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include "tools/args.h"

namespace tg {

struct OptimizerOptions {
  std::string optimizer = "adamw", schedule = "cosine";
  double lr = 1e-3, min_lr = 1e-4, decay_part = 0.2;
  double weight_decay = 0.1, clip = 1, momentum = 0.9;
  bool nesterov = false;
  std::int64_t warmup = 100, accumulate = 1;
};

void declare_optimizer_options(Args& args, OptimizerOptions& o);
// Gives options that are not on the command line the defaults that match the others. Returns what is wrong
// with a combination of valid options; empty if nothing is. A model that is trained already is tuned at a
// lower rate.
std::string settle_optimizer(const Args& args, OptimizerOptions& o, bool is_tuned);

optim::Schedule schedule_of(const OptimizerOptions& o, std::int64_t steps);
std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerOptions& o,
                                                 const std::vector<Parameter>& parameters,
                                                 const std::optional<optim::LossScale>& loss_scale,
                                                 nn::Precision precision,
                                                 std::shared_ptr<Communicator> ranks = {});
// "adamw, lr 0.001 → 0.0001 (cosine) after 100 steps of warm-up"
std::string description(const OptimizerOptions& o, std::int64_t steps);

}  // namespace tg
