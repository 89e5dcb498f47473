// A GPT's training step, AdamW and clipping included: how long it takes, and where the time goes.
#include <algorithm>
#include <map>

#include <tilegrad/core/report/profile.h>
#include <tilegrad/core/run/cost.h>
#include <tilegrad/nn/training/training.h>
#include "tools/bench/modes.h"

namespace tg::bench {

namespace {

// FLOPs of the steps that report them: matmuls and attention.
double flops(const Program& program) {
  double sum = 0;
  for (const Step& s : program.steps()) sum += cost_of(s).flops;
  return sum;
}

// On a GPU: seconds of a step when steps follow each other, 20 before the host waits, and seconds for which a
// step keeps the host busy, shortest and median.
struct StepTimes {
  double step, host, host_median;
};
StepTimes time_steps(train::TrainingProgram& training, const std::vector<std::int32_t>& x,
                     const std::vector<std::int32_t>& y, const Settings& settings) {
  constexpr int steps = 20;
  std::vector<double> host;
  const double all = best_seconds(settings.seconds, [&] {
    Pending last;
    for (int n = 0; n < steps; ++n) {
      const double start = now();
      last = training.start(x, y, 1e-4);
      host.push_back(now() - start);
    }
    last.wait();
  });
  std::sort(host.begin(), host.end());
  return {all / steps, host.front(), host[host.size() / 2]};
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
  std::vector<std::int32_t> x(static_cast<std::size_t>(tokens)), y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<std::int32_t>(i * 7 % 65), y[i] = static_cast<std::int32_t>(i * 11 % 65);
  const std::int64_t sizes[] = {config.layers, config.heads, config.width, config.context, batch};

  const nn::Precision precision = nn::precision_named(settings.dtype_name());
  for (int threads = settings.threads;; threads = 1) {
    train::TrainingProgram training(model, optimizer,
                                    {.batch = batch, .threads = threads, .precision = precision});
    training.run(x, y, 1e-4);
    Program& program = training.program();
    const auto row = [&](const std::string& name, const std::string& pass, double seconds) {
      return Row{.name = name,
                 .shape = joined(sizes),
                 .dtype = settings.dtype_name(),
                 .pass = pass,
                 .threads = threads,
                 .ms = seconds * 1e3};
    };
    Timing t{};
    if (settings.device.kind == Device::cpu_kind) {
      t = run_and_peak(program, settings.dtype, threads, settings, machine);
    } else {
      const StepTimes r = time_steps(training, x, y, settings);
      t = {r.step, settings.dtype == f32 ? machine.peak_f32 : machine.peak_bf16};
      for (const auto& [name, seconds] :
           {std::pair{"GPT step, host", r.host}, std::pair{"GPT step, host, median", r.host_median}}) {
        Row host = row(name, "both", seconds);
        host.rate = seconds * 1e6, host.unit = "µs";
        if (report.selects(host.name)) report.add(host);
      }
    }
    if (report.selects("GPT step")) {
      Row step = row("GPT step", "both", t.seconds);
      step.rate = static_cast<double>(tokens) / t.seconds, step.unit = "tokens/s";
      step.share = flops(program) * 1e-9 / t.seconds / t.peak, step.of = machine.peak_name;
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
