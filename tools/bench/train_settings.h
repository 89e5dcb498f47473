// What the mode `train` of bench is told by options of its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <tilegrad/nn/models/model_config.h>

namespace tg::bench {

struct TrainSettings {
  std::optional<nn::ModelConfig> model;  // to report on a step of it; none: rows of a GPT by --shape
  std::int64_t batch = 12;
  bool recompute = false;
  std::size_t budget = 0;         // bytes that a step may have; 0: any
  double peak = 0;                // FLOP/s that utilisation is a share of; 0: as measured
  std::string plot;               // also draw the step into this file; of the mode ranks, what `rows` have
  std::vector<std::string> rows;  // files of earlier runs of the mode ranks
};

}  // namespace tg::bench
