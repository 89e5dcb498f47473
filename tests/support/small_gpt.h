// A small GPT for tests of complete training steps, on any backend and in any precision.
#pragma once

#include <tilegrad/train/training.h>

namespace tg::testing {

inline constexpr std::int64_t small_batch = 4;

inline nn::ModelConfig small_gpt(double dropout = 0) {
  return {.vocabulary = 13, .context = 16, .layers = 2, .heads = 2, .width = 32, .dropout = dropout};
}

// Returns a batch of a document that repeats every 65 characters. `number` selects the part.
struct SmallBatch {
  std::vector<std::int32_t> x, y;
  explicit SmallBatch(std::int64_t number = 0) {
    const auto character = [](std::int64_t i) { return static_cast<std::int32_t>((i * i + i / 5) % 13); };
    for (std::int64_t i = 0; i < small_batch * small_gpt().context; ++i) {
      x.push_back(character(i + 97 * number));
      y.push_back(character(i + 97 * number + 1));
    }
  }
};

struct SmallGptOptions {
  nn::Precision precision = nn::Precision::full;
  std::optional<optim::LossScale> loss_scale = {};
  double dropout = 0;
  Device device = Device::cpu();
  int threads = 1;
  bool verify = false;
  std::uint64_t seed = 5;  // seed of dropout
};

struct SmallGpt {
  nn::Params params;
  nn::Model model;
  optim::AdamW optimizer;
  train::TrainingProgram training;

  explicit SmallGpt(const SmallGptOptions& o = {})
      : params(1, f32, o.device),
        model(params, small_gpt(o.dropout)),
        optimizer(params.all(), {.loss_scale = o.loss_scale}),
        training(model, optimizer,
                 {.batch = small_batch, .threads = o.threads, .verify = o.verify, .precision = o.precision},
                 o.seed) {}

  train::TrainingProgram::Result step(double learning_rate = 1e-2, std::int64_t number = 0) {
    const SmallBatch b(number);
    return training.run(b.x, b.y, learning_rate);
  }
  // Returns the losses of the given number of steps, each with a different batch.
  std::vector<double> losses(int steps, double learning_rate) {
    std::vector<double> all;
    for (int i = 0; i < steps; ++i) all.push_back(step(learning_rate, i).loss);
    return all;
  }

  // Returns all state that affects later steps, except for the optimizer's counters.
  std::vector<Array> weights_and_moments() const {
    std::vector<Array> values;
    for (const Parameter& p : params.all()) values.push_back(p.read());
    for (const Parameter& p : optimizer.state())
      if (!p.shape().empty()) values.push_back(p.read());
    return values;
  }
  // Returns the parameter "optimizer.<name>".
  Parameter state(const std::string& name) const {
    for (const Parameter& p : optimizer.state())
      if (p.name() == "optimizer." + name) return p;
    throw Error("the optimizer has no " + name);
  }
  float scalar(const std::string& name) const { return state(name).read().item<float>(); }
};

inline bool same_bits(const std::vector<Array>& a, const std::vector<Array>& b) {
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    if (!a[i].same_bits(b[i])) return false;
  return a.size() == b.size();
}

// Returns the same loss scale as `train --dtype` for the precision.
inline std::optional<optim::LossScale> loss_scale_for(nn::Precision p) {
  return p == nn::Precision::f16 ? std::optional(optim::LossScale{}) : std::nullopt;
}

}  // namespace tg::testing
