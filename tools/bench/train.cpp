// Measures a GPT's training step, including AdamW and clipping: its time, and its profile by kind of step.
#include <algorithm>
#include <map>

#include <tilegrad/core/report/profile.h>
#include <tilegrad/core/run/cost.h>
#include "tools/bench/measure.h"
#include "tools/bench/report.h"

namespace tg::bench {

namespace {

// Sums the FLOPs of matmuls and attention, which are the steps that report FLOPs.
double flops(const Program& program) {
  double sum = 0;
  for (const Step& s : program.steps()) sum += cost_of(s).flops;
  return sum;
}

// Returns the seconds by kind of step. For each step, the fastest of several runs counts.
std::map<std::string, double> seconds_by_kind(Program& program, const Settings& settings) {
  std::vector<double> fastest(program.steps().size(), std::numeric_limits<double>::infinity());
  repeat(settings.seconds, [&] {
    const std::vector<double> seconds = program.profile();
    for (std::size_t i = 0; i < seconds.size(); ++i) fastest[i] = std::min(fastest[i], seconds[i]);
  });
  std::map<std::string, double> sums;
  for (std::size_t i = 0; i < fastest.size(); ++i) sums[kind_of(program.steps()[i])] += fastest[i];
  return sums;
}

}  // namespace

void run_train(Report& report) {
  const Settings& settings = report.settings;
  if (settings.train.model) return report_model(report);
  const Sizes sizes = report.sizes({4, 4, 128, 64, 12});
  const std::int64_t batch = sizes[4];
  const nn::ModelConfig config = config_of({}, Sizes{sizes[0], sizes[1], sizes[2], sizes[3], 65});
  nn::Params params(0, f32, settings.device);
  const nn::Model model(params, config);
  const optim::AdamW optimizer(params.all());
  const TrainBatch data(batch, config);
  for (int threads = settings.threads;; threads = 1) {
    train::TrainingProgram training(model, optimizer,
                                    {.batch = batch, .threads = threads, .precision = settings.precision()});
    training.run(data.tokens, data.targets, bench_learning_rate);
    Program& program = training.program();
    const auto row = [&](const std::string& name, const std::string& pass, double seconds) {
      return report.row(name, joined(sizes), pass, threads).time(seconds);
    };
    const StepTimes t = time_steps(training, data, threads, settings, report.machine);
    if (!settings.on_cpu())
      for (const auto& [name, seconds] :
           {std::pair{"GPT step, host", t.host}, std::pair{"GPT step, host, median", t.host_median}})
        report.add_selected(row(name, "both", seconds).at(seconds * 1e6, "µs"));
    report.add_selected(row("GPT step", "both", t.best)
                            .at(static_cast<double>(data.tokens.size()) / t.best, "tokens/s")
                            .part(flops(program) * 1e-9 / t.best / t.peak, report.machine.peak_name));
    std::vector<std::pair<double, std::string>> sorted;
    double sum = 0;
    for (const auto& [kind, seconds] : seconds_by_kind(program, settings))
      sorted.emplace_back(seconds, kind), sum += seconds;
    std::sort(sorted.rbegin(), sorted.rend());
    for (const auto& [seconds, kind] : sorted)
      report.add_selected(row(kind, "", seconds).part(seconds / sum, "step"));
    if (threads == 1) return;
  }
}

}  // namespace tg::bench
