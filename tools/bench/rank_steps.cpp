// bench ranks with the options of a model: a training step of ranks that have a batch each, where each rank
// makes the whole update, and where they divide it, as a share of what all of them train alone at the same
// time.
#include <algorithm>

#include "core/run/gather.h"
#include "tools/bench/modes.h"
#include "tools/bench/step_times.h"

namespace tg::bench {

namespace {

constexpr int warm_up = 3, runs = 7, steps = 10;  // the same on all ranks

// Seconds of a step: the median of runs of steps that follow each other.
double seconds_of_step(train::TrainingProgram& training, const TrainBatch& batch) {
  const auto run = [&](int count) {
    const double start = now();
    Pending last;
    for (int i = 0; i < count; ++i) last = training.start(batch.tokens, batch.targets, bench_learning_rate);
    last.wait();
    return (now() - start) / count;
  };
  run(warm_up);
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) seconds.push_back(run(steps));
  std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
  return seconds[runs / 2];
}

}  // namespace

void report_rank_steps(const Settings& settings, Report& report) {
  const nn::ModelConfig& config = *settings.train.model;
  const std::shared_ptr<Communicator>& ranks = settings.ranks;
  const int n = ranks->size();
  nn::Params params(0, f32, settings.device);
  const nn::Model model(params, config);
  double alone = 0;  // tokens/s of all ranks
  struct Way {
    const char* name;
    bool together, divides;
  };
  for (const Way& way : {Way{"step, each alone", false, false}, Way{"step, whole update", true, false},
                         Way{"step, divided update", true, true}}) {
    const optim::AdamW optimizer(params.all(), {.ranks = way.divides ? ranks : nullptr});
    train::ProgramOptions options{.batch = settings.train.batch,
                                  .threads = 1,
                                  .precision = nn::precision_named(settings.dtype_name()),
                                  .accumulate = way.together ? n : 1,
                                  .recompute = settings.train.recompute,
                                  .memory_budget = settings.train.budget};
    if (way.together) options.ranks = ranks;
    train::TrainingProgram training(model, optimizer, options);
    const TrainBatch batch(options.batch * options.accumulate, config.context, config.vocabulary);
    const double seconds = seconds_of_step(training, batch);
    training.gather_weights();
    double rate = 0;
    for (double s : gather_one(*ranks, seconds))
      rate += static_cast<double>(batch.tokens.size()) / s / (way.together ? n : 1);
    if (!way.together) alone = rate;
    Row row{way.name, std::to_string(options.batch) + "x" + std::to_string(config.context),
            settings.dtype_name(), std::to_string(n) + " ranks", 1};
    row.ms = seconds * 1e3;
    row.rate = rate, row.unit = "tokens/s";
    row.share = rate / alone, row.of = "all alone";
    report.add(row);
  }
}

}  // namespace tg::bench
