// A GPT's training step, AdamW and clipping included: how long it takes, and where the time goes.
#include <algorithm>
#include <map>

#include "nn/training.h"
#include "tools/bench/modes.h"

namespace tg::bench {

namespace {

// FLOPs of the steps that know theirs: products and attention.
double flops(const Program& program) {
  double sum = 0;
  for (const Step& s : program.steps()) {
    if (!s.op->cost) continue;
    std::vector<Operand> in, out;
    for (const Arg& a : s.in) in.push_back({a.dtype, a.layout});
    for (const Arg& a : s.out) out.push_back({a.dtype, a.layout});
    sum += s.op->cost(in, out, s.attrs).flops;
  }
  return sum;
}

// Seconds by kind of step, each step at its fastest of several runs. A chain goes by its last op.
std::map<std::string, double> seconds_by_kind(Program& program, const Settings& settings) {
  std::vector<double> fastest(program.steps().size(), std::numeric_limits<double>::infinity());
  best_seconds(settings.seconds, [&] {
    const std::vector<double> seconds = program.profile();
    for (std::size_t i = 0; i < seconds.size(); ++i) fastest[i] = std::min(fastest[i], seconds[i]);
  });
  std::map<std::string, double> sums;
  for (std::size_t i = 0; i < fastest.size(); ++i) {
    const Step& s = program.steps()[i];
    const std::string last = s.name.substr(s.name.find_last_of('/') + 1);
    sums[s.op->name == last ? last : "chain to " + last] += fastest[i];
  }
  return sums;
}

}  // namespace

void run_train(const Settings& settings, const Machine&, Report& report) {
  GptConfig config{.vocabulary = 65, .context = 64, .layers = 4, .heads = 4, .width = 128};
  std::int64_t batch = 12;
  if (!settings.shapes.empty()) {
    const std::vector<std::int64_t>& s = settings.shapes[0];
    config.layers = s[0], config.heads = s[1], config.width = s[2], config.context = s[3], batch = s[4];
  }
  Params params;
  const Gpt model(params, config);
  const AdamW optimizer(params.all());
  const std::int64_t tokens = batch * config.context;
  std::vector<std::int32_t> x(static_cast<std::size_t>(tokens)), y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<std::int32_t>(i * 7 % 65), y[i] = static_cast<std::int32_t>(i * 11 % 65);
  const std::int64_t sizes[] = {config.layers, config.heads, config.width, config.context, batch};

  for (int threads = settings.threads;; threads = 1) {
    TrainingProgram training(model, optimizer, {.batch = batch, .threads = threads});
    training.run(x, y, 1e-4);
    Program& program = training.program();
    const auto row = [&](const std::string& name, const std::string& pass, double seconds) {
      return Row{.name = name,
                 .shape = joined(sizes),
                 .dtype = "f32",
                 .pass = pass,
                 .threads = threads,
                 .ms = seconds * 1e3};
    };
    const Timing t = best_run_and_peak(program, f32, threads, settings);
    if (report.wants("GPT step")) {
      Row step = row("GPT step", "both", t.seconds);
      step.rate = static_cast<double>(tokens) / t.seconds, step.unit = "tokens/s";
      step.share = flops(program) * 1e-9 / t.seconds / t.peak, step.of = "multiply-add";
      report.add(step);
    }
    const std::map<std::string, double> kinds = seconds_by_kind(program, settings);
    std::vector<std::pair<double, std::string>> sorted;
    double sum = 0;
    for (const auto& [kind, seconds] : kinds) sorted.emplace_back(seconds, kind), sum += seconds;
    std::sort(sorted.rbegin(), sorted.rend());
    for (const auto& [seconds, kind] : sorted) {
      if (!report.wants(kind)) continue;
      Row part = row(kind, "", seconds);
      part.share = seconds / sum, part.of = "step";
      report.add(part);
    }
    if (threads == 1) return;
  }
}

}  // namespace tg::bench
