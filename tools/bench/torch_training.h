// PyTorch's training step of the same model, from the same weights, in a process of its own.
#pragma once

#include <tilegrad/nn/models/model_config.h>
#include "tools/bench/measure.h"
#include "tools/bench/python_process.h"

namespace tg::bench {

// What a model says in its first steps, by which two implementations are known to be the same.
struct FirstSteps {
  double loss = Row::none, grad_norm = Row::none, next_loss = Row::none;
};
// What differs by more than rounding in that dtype ("loss 4.1743, expected 4.1741"), or "".
std::string difference(const FirstSteps& got, const FirstSteps& expected, const std::string& dtype);

class TorchTraining {
 public:
  // Of settings.train, with the weights of that seed.
  TorchTraining(const Settings& settings, std::uint64_t seed);

  bool ready() const { return python_.ready(); }
  const std::string& about() const { return python_.about(); }  // its versions, or why it is not ready

  struct Step {
    double best, median;       // seconds
    double bytes = Row::none;  // of the GPU's memory, at the peak
    FirstSteps first;
    std::string refusal;  // why it was not measured, or ""
  };
  Step step(const std::string& way);  // "eager", "compiled" or "graphs"

 private:
  PythonProcess python_;
};

}  // namespace tg::bench
