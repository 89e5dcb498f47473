// The command line of tools/train.
#pragma once

#include "core/device.h"
#include "nn/model.h"
#include "tools/train/data.h"

namespace tg {

struct TrainOptions {
  DataOptions data;
  std::string out = "out/train", backend = "cpu", dtype = "f32", architecture = "gpt";
  Device device;      // of `backend`
  ModelConfig model;  // vocabulary: from the data; architecture: by take_model
  std::int64_t batch = 12, steps = 2000, warmup = 100, seed = 1, threads = 0;
  double lr = 1e-3, min_lr = 1e-4;
  std::int64_t eval_every = 250, eval_batches = 20, save_every = 250, sample = 400, profile = 0;
  bool resume = false, overwrite = false;
};

// Every option with its help and its limits, and the examples.
void declare_options(Args& args, TrainOptions& o);

// Gives the model its architecture. Returns what is wrong with its options (one that the architecture does
// not have, sizes that do not fit), or nothing.
std::string take_model(const Args& args, TrainOptions& o);

}  // namespace tg
