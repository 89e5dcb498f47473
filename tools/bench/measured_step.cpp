#include "tools/bench/measured_step.h"

#include <tilegrad/core/report/profile.h>
#include <tilegrad/nn/models/model.h>
#include "tools/batch_room.h"

namespace tg::bench {

namespace {

void check_room(const nn::LanguageModel& model, const optim::Optimizer& optimizer,
                train::ProgramOptions options) {
  options.plan_only = true;
  check_batch(model.device(), options.batch, [&](std::int64_t batch) {
    options.batch = batch;
    const MemoryReport m = train::TrainingProgram(model, optimizer, options).memory();
    return m.peak() - m.parameters;
  });
}

}  // namespace

MeasuredStep measure_step(const Settings& settings, const Machine& machine) {
  const TrainSettings& t = settings.train;
  const nn::ModelConfig& config = *t.model;
  const auto bytes = static_cast<double>(config.parameters()) * static_cast<double>(size_of(f32));
  check_memory(settings.device, 3 * bytes, "the model with its optimizer");
  nn::Params params(weights_seed, f32, settings.device);
  const nn::Model model(params, config);
  optim::AdamW::Options adamw;
  if (settings.dtype == f16) adamw.loss_scale = optim::LossScale{};
  const optim::AdamW optimizer(params.all(), adamw);
  const train::ProgramOptions options{.batch = t.batch,
                                      .threads = settings.threads,
                                      .precision = nn::precision_named(settings.dtype_name()),
                                      .recompute = t.recompute,
                                      .memory_budget = t.budget};
  check_room(model, optimizer, options);
  train::TrainingProgram training(model, optimizer, options);
  MeasuredStep m{.parameters = params.count(),
                 .memory = training.memory(),
                 .loss_chunks = training.loss_chunks(),
                 .flops = model_flops(model, t.batch)};
  for (const Parameter& p : params.all()) m.weights += p.bytes();
  const TrainBatch data(t.batch, config.context, config.vocabulary);
  const auto start = [&] { return training.start(data.tokens, data.targets, bench_learning_rate); };
  const auto first = training.result(start());
  m.first = {first.loss, first.grad_norm, training.result(start()).loss};
  m.times = time_steps(training, data, settings.threads, settings, machine);
  // About as long as the steps that were timed.
  const int runs = std::clamp(static_cast<int>(settings.seconds / m.times.median), 3, 50);
  std::vector<double> seconds;
  for (const StepTime& s : profile(training.program(), {}, runs, start).steps) seconds.push_back(s.seconds);
  m.families = by_family(training.program().steps(), seconds);
  m.picture = step_picture(training.program(), seconds);
  return m;
}

}  // namespace tg::bench
