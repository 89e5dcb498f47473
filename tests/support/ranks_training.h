// Trains a small GPT on several ranks, on any backend. Returns all bytes of the result, which must not depend
// on the number of ranks.
#pragma once

#include <tilegrad/tilegrad.h>
#include "tests/support/ranks.h"
#include "tests/support/small_gpt.h"

namespace tg::testing {

inline constexpr std::int64_t rank_batch = 2, micro_batches = 4;

// Ranks can divide two of the model's parameters evenly (16384 elements). A third parameter has a remainder
// (19200 elements).
inline nn::ModelConfig ranks_gpt(double dropout = 0) {
  return {.vocabulary = 300, .context = 16, .layers = 1, .heads = 2, .width = 64, .dropout = dropout};
}

// Returns the rows of step `n`. Some rows have few targets, so batches have different weights.
struct StepRows {
  std::vector<std::int32_t> x, y;
  StepRows(std::int64_t n, std::int64_t batches) {
    const std::int64_t context = ranks_gpt().context, rows = rank_batch * batches;
    for (std::int64_t i = 0; i < rows * context; ++i) {
      const auto character = [&](std::int64_t at) {
        return static_cast<std::int32_t>((at * at + at / 5 + 7 * n) % 13);
      };
      x.push_back(character(i));
      y.push_back(i / context % 3 == 1 && i % context < 11 ? -100 : character(i + 1));
    }
  }
};

struct How {
  const char* name;
  nn::Precision precision = nn::Precision::full;
  const char* optimizer = "adamw";
  double dropout = 0, loss_scale = 0;
  std::int64_t accumulate = micro_batches;
  std::uint64_t steps = 20;
  bool divides = true;  // shards the optimizer's update
  bool early = false;   // scatters gradients as soon as they are ready
};

inline std::unique_ptr<optim::Optimizer> optimizer_of(const How& how, const std::vector<Parameter>& params,
                                                      const std::shared_ptr<Communicator>& ranks) {
  const auto scale =
      how.loss_scale > 0 ? std::optional(optim::LossScale{.initial = how.loss_scale}) : std::nullopt;
  const auto dividing = how.divides ? ranks : nullptr;
  if (how.optimizer == std::string("sgd"))
    return std::make_unique<optim::Sgd>(
        params, optim::Sgd::Options{.momentum = 0.9, .loss_scale = scale, .ranks = dividing});
  if (how.optimizer == std::string("muon"))
    return std::make_unique<optim::Muon>(params, optim::Muon::Options{.ranks = dividing});
  return std::make_unique<optim::AdamW>(
      params, optim::AdamW::Options{.clip = 0.5, .loss_scale = scale, .ranks = dividing});
}

inline void append(std::string& bytes, const void* from, std::size_t count) {
  bytes.append(static_cast<const char*>(from), count);
}

// Returns the bytes of all results, and of the parameters and the optimizer state after training.
inline std::string trained(Communicator& ranks, const How& how, Device device = Device::cpu()) {
  nn::Params params(1, f32, device);
  const nn::Model model(params, ranks_gpt(how.dropout));
  train::ProgramOptions options{.batch = rank_batch,
                                .threads = 1,
                                .precision = how.precision,
                                .accumulate = how.accumulate,
                                .hoist_collectives = how.early};
  if (ranks.size() > 1) options.ranks = {std::shared_ptr<void>(), &ranks};
  const auto optimizer = optimizer_of(how, params.all(), options.ranks);
  train::TrainingProgram training(model, *optimizer, options, 5);
  std::string bytes;
  for (std::uint64_t n = 0; n < how.steps; ++n) {
    const StepRows rows(static_cast<std::int64_t>(n), how.accumulate);
    const auto r = training.run(rows.x, rows.y, 1e-2);
    append(bytes, &r.loss, sizeof r.loss);
    append(bytes, &r.grad_norm, sizeof r.grad_norm);
    append(bytes, &r.skipped, sizeof r.skipped);
    append(bytes, &r.overflowed, sizeof r.overflowed);
    if (n + 1 == how.steps && how.loss_scale == 0) {
      EXPECT_EQ(r.skipped, 0);
    }
    if (n + 1 == how.steps && how.loss_scale > 0) {
      EXPECT_GT(r.overflowed, 0);
    }
  }
  training.gather_weights();
  std::vector<Parameter> all = params.all();
  const std::vector<Parameter> state = optimizer->whole_state();
  optimizer->gather_state(state);
  all.insert(all.end(), state.begin(), state.end());
  for (const Parameter& p : all) {
    const Array a = p.read();
    append(bytes, a.raw(), static_cast<std::size_t>(a.numel()) * size_of(a.dtype()));
  }
  return bytes;
}

}  // namespace tg::testing
