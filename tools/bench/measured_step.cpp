#include "tools/bench/measured_step.h"

#include <tilegrad/core/report/profile.h>
#include <tilegrad/core/run/cost.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/train/training.h>
#include "tools/batch_room.h"
#include "tools/train_report.h"

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

std::string ModelFlops::formula() const {
  const auto whole = [](double x) { return grouped(std::llround(x)); };
  return "6 · " + whole(weights) + " weights · " + whole(tokens) + " tokens + 3 · " +
         short_number(attention * 1e-9) + " GFLOP of attention (causal)";
}

ModelFlops model_flops(const nn::LanguageModel& model, std::int64_t batch) {
  train::EvaluationProgram evaluation(model, {.batch = batch, .plan_only = true});
  ModelFlops f{.tokens = static_cast<double>(batch * model.context)};
  for (const Step& s : evaluation.program().steps()) {
    if (s.op->product) f.weights += cost_of(s).flops / (2 * f.tokens);
    if (attention_of(*s.op, s.attrs)) f.attention += cost_of(s).flops;
  }
  return f;
}

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
