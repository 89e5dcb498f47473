// The options of a model, which the modes `train` and `ranks` of bench have.
#pragma once

#include "tools/bench/measure.h"
#include "tools/model_options.h"

namespace tg::bench {

struct TrainCommandLine : ModelOptions {
  std::int64_t vocabulary = 65;
  double peak = 0;  // TFLOP/s
  std::string memory_budget;
  TrainSettings settings;

  void declare(Args& args);
  // Completes the settings, with a model if there is an option of a model or of a report on one. Returns
  // what is wrong with the options, or "".
  std::string take(const Args& args, const std::string& mode, const std::vector<std::string>& shapes);

 private:
  std::string take_shape(const Args& args, const std::string& report, const std::vector<std::string>& shapes);
};

}  // namespace tg::bench
