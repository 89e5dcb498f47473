// A GPT's training step, AdamW and clipping included: how long it takes, and where the time goes.
#include <algorithm>
#include <map>

#include <tilegrad/core/report/profile.h>
#include <tilegrad/core/run/cost.h>
#include "tools/bench/modes.h"
#include "tools/bench/step_times.h"

namespace tg::bench {

namespace {

// FLOPs of the steps that report them: matmuls and attention.
double flops(const Program& program) {
  double sum = 0;
  for (const Step& s : program.steps()) sum += cost_of(s).flops;
  return sum;
}

// Seconds by kind of step, each step at its fastest of several runs.
std::map<std::string, double> seconds_by_kind(Program& program, const Settings& settings) {
  std::vector<double> fastest(program.steps().size(), std::numeric_limits<double>::infinity());
  best_seconds(settings.seconds, [&] {
    const std::vector<double> seconds = program.profile();
    for (std::size_t i = 0; i < seconds.size(); ++i) fastest[i] = std::min(fastest[i], seconds[i]);
  });
  std::map<std::string, double> sums;
  for (std::size_t i = 0; i < fastest.size(); ++i) sums[kind_of(program.steps()[i])] += fastest[i];
  return sums;
}

}  // namespace

void run_train(const Settings& settings, const Machine& machine, Report& report) {
  if (settings.train.model) return report_model(settings, machine, report);
  nn::ModelConfig config{.vocabulary = 65, .context = 64, .layers = 4, .heads = 4, .width = 128};
  std::int64_t batch = 12;
  if (!settings.shapes.empty()) {
    const std::vector<std::int64_t>& s = settings.shapes[0];
    config.layers = s[0], config.heads = s[1], config.width = s[2], config.context = s[3], batch = s[4];
  }
  nn::Params params(0, f32, settings.device);
  const nn::Model model(params, config);
  const optim::AdamW optimizer(params.all());
  const std::int64_t tokens = batch * config.context;
  const TrainBatch data(batch, config.context, config.vocabulary);
  const std::int64_t sizes[] = {config.layers, config.heads, config.width, config.context, batch};

  const nn::Precision precision = nn::precision_named(settings.dtype_name());
  for (int threads = settings.threads;; threads = 1) {
    train::TrainingProgram training(model, optimizer,
                                    {.batch = batch, .threads = threads, .precision = precision});
    training.run(data.tokens, data.targets, bench_learning_rate);
    Program& program = training.program();
    const auto row = [&](const std::string& name, const std::string& pass, double seconds) {
      return Row{.name = name,
                 .shape = joined(sizes),
                 .dtype = settings.dtype_name(),
                 .pass = pass,
                 .threads = threads,
                 .ms = seconds * 1e3};
    };
    const StepTimes t = time_steps(training, data, threads, settings, machine);
    if (settings.device.kind != Device::cpu_kind) {
      for (const auto& [name, seconds] :
           {std::pair{"GPT step, host", t.host}, std::pair{"GPT step, host, median", t.host_median}}) {
        Row host = row(name, "both", seconds);
        host.rate = seconds * 1e6, host.unit = "µs";
        if (report.selects(host.name)) report.add(host);
      }
    }
    if (report.selects("GPT step")) {
      Row step = row("GPT step", "both", t.best);
      step.rate = static_cast<double>(tokens) / t.best, step.unit = "tokens/s";
      step.share = flops(program) * 1e-9 / t.best / t.peak, step.of = machine.peak_name;
      report.add(step);
    }
    const std::map<std::string, double> kinds = seconds_by_kind(program, settings);
    std::vector<std::pair<double, std::string>> sorted;
    double sum = 0;
    for (const auto& [kind, seconds] : kinds) sorted.emplace_back(seconds, kind), sum += seconds;
    std::sort(sorted.rbegin(), sorted.rend());
    for (const auto& [seconds, kind] : sorted) {
      if (!report.selects(kind)) continue;
      Row part = row(kind, "", seconds);
      part.share = seconds / sum, part.of = "step";
      report.add(part);
    }
    if (threads == 1) return;
  }
}

}  // namespace tg::bench
