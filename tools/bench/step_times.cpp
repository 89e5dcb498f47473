#include "tools/bench/step_times.h"

namespace tg::bench {

TrainBatch::TrainBatch(std::int64_t rows, std::int64_t context, std::int64_t vocabulary) {
  for (std::int64_t i = 0; i < rows * context; ++i) {
    tokens.push_back(static_cast<std::int32_t>(i * 7919 % vocabulary));
    targets.push_back(static_cast<std::int32_t>(i * 104729 % vocabulary));
  }
}

StepTimes time_steps(train::TrainingProgram& training, const TrainBatch& batch, int threads,
                     const Settings& settings, const Machine& machine) {
  const bool on_cpu = settings.device.kind == Device::cpu_kind;
  const int steps = on_cpu ? 1 : 20;
  std::vector<double> all, host;
  double peak = on_cpu ? 0 : product_peak(machine, settings.dtype), probed = 0;
  const double end = now() + settings.seconds;
  while (all.size() < 3 || now() < end) {
    if (on_cpu && now() > probed + 0.01) {
      peak = std::max(peak, peak_now(settings.dtype, threads));
      probed = now();
    }
    Pending last;
    const double start = now();
    for (int n = 0; n < steps; ++n) {
      const double before = now();
      last = training.start(batch.tokens, batch.targets, bench_learning_rate);
      host.push_back(now() - before);
    }
    last.wait();
    all.push_back((now() - start) / steps);
  }
  std::sort(all.begin(), all.end());
  std::sort(host.begin(), host.end());
  return {.best = all.front(),
          .median = all[all.size() / 2],
          .host = host.front(),
          .host_median = host[host.size() / 2],
          .peak = peak,
          .runs = static_cast<int>(all.size()) * steps};
}

}  // namespace tg::bench
