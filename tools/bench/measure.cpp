#include "tools/bench/measure.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include <tilegrad/ops/ops.h>

namespace tg::bench {

namespace {

// Measures the peak rate of the CPU between runs, every 10 ms, and keeps the highest value. The peak rate of
// a GPU is assumed to be constant.
struct PeakProbe {
  DType dtype;
  int threads;
  const Settings& settings;
  double peak, probed = 0;

  void measure() {
    if (!settings.on_cpu() || now() <= probed + 0.01) return;
    peak = std::max(peak, peak_now(dtype, threads));
    probed = now();
  }
};

PeakProbe probe_of(DType dtype, int threads, const Settings& settings, const Machine& machine) {
  return {dtype, threads, settings, settings.on_cpu() ? 0 : machine.product_peak(dtype)};
}

// Fills an array with values of `draw`. After about a million values, it repeats them.
template <class F>
Array filled_array(const Shape& shape, DType dtype, F draw) {
  Array a(shape, dtype);
  constexpr std::int64_t drawn = 1000003;  // a prime, so that no two rows start with the same values
  for (std::int64_t i = 0; i < std::min(a.numel(), drawn); ++i) {
    const double u = draw();
    if (dtype == f32)
      a.data<float>()[i] = static_cast<float>(u);
    else
      a.set(i, is_float(dtype) ? u : std::floor(u));
  }
  const std::size_t size = size_of(dtype);
  for (std::int64_t i = drawn; i < a.numel(); i += drawn)
    std::memcpy(a.raw() + static_cast<std::size_t>(i) * size, a.raw(),
                static_cast<std::size_t>(std::min(drawn, a.numel() - i)) * size);
  return a;
}

}  // namespace

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double profiled_seconds(Program& program) {
  const std::vector<double> steps = program.profile();
  return std::accumulate(steps.begin(), steps.end(), 0.);
}

double time_of_run(Program& program, const Settings& settings) {
  if (settings.on_cpu()) return best_seconds(settings.seconds, [&] { program.run(); });
  return median_of(settings.seconds, [&] { return profiled_seconds(program); });
}

Timing run_and_peak(Program& program, DType dtype, int threads, const Settings& settings,
                    const Machine& machine) {
  PeakProbe probe = probe_of(dtype, threads, settings, machine);
  if (!settings.on_cpu()) return {time_of_run(program, settings), probe.peak};
  double best = std::numeric_limits<double>::infinity();
  repeat(settings.seconds, [&] {
    probe.measure();
    best = std::min(best, seconds_of([&] { program.run(); }));
  });
  return {best, probe.peak};
}

ColdRuns::ColdRuns(const Settings& settings)
    : seconds_(settings.seconds), bytes_(static_cast<double>(settings.copy_bytes)) {
  Graph g;
  const auto numbers =
      static_cast<std::int64_t>(settings.copy_bytes / 2 / sizeof(float));  // read and written
  const Tensor x = g.input("flushed", {numbers});
  flush_ = compile(g, {x + 1}, settings.compile_options());
  flush_->feed({x, Array(x.shape(), f32)});
}

double ColdRuns::one_run(Program& program) {
  flush_->run();
  return profiled_seconds(program);
}

double ColdRuns::median(Program& program) {
  for (const double end = now() + seconds_ / 10; now() < end;) one_run(program);
  return median_of(seconds_ / 2, [&] { return one_run(program); });
}

int ColdRuns::calls(double bytes) const {
  return static_cast<int>(std::clamp(std::ceil(bytes_ / bytes), 2., 128.));
}

double ColdRuns::median_in_graph(Program& program, int calls, const Tensor& output) {
  const auto seconds_of_runs = [&](int runs) {
    return seconds_of([&] {
             for (int n = 0; n < runs; ++n) program.run();
             program.fetch_later({output}).wait();
           }) /
           runs;
  };
  seconds_of_runs(2);  // first run: warm-up
  const int queued = static_cast<int>(std::clamp(0.01 / seconds_of_runs(3), 2., 100.));
  return median_of(seconds_ / 2, [&] { return seconds_of_runs(queued); }) / calls;
}

TrainBatch::TrainBatch(std::int64_t rows, const nn::ModelConfig& config) {
  for (std::int64_t i = 0; i < rows * config.context; ++i) {
    tokens.push_back(static_cast<std::int32_t>(i * 7919 % config.vocabulary));
    targets.push_back(static_cast<std::int32_t>(i * 104729 % config.vocabulary));
  }
}

StepTimes time_steps(train::TrainingProgram& training, const TrainBatch& batch, int threads,
                     const Settings& settings, const Machine& machine) {
  const int steps = settings.on_cpu() ? 1 : 20;
  std::vector<double> all, host;
  PeakProbe probe = probe_of(settings.dtype, threads, settings, machine);
  repeat(settings.seconds, [&] {
    probe.measure();
    Pending last;
    const double start = now();
    for (int n = 0; n < steps; ++n)
      host.push_back(
          seconds_of([&] { last = training.start(batch.tokens, batch.targets, bench_learning_rate); }));
    last.wait();
    all.push_back((now() - start) / steps);
  });
  return {.best = std::ranges::min(all),
          .median = median(all),
          .host = std::ranges::min(host),
          .host_median = median(host),
          .peak = probe.peak,
          .runs = static_cast<int>(all.size()) * steps};
}

Array random_array(const Shape& shape, DType dtype, double low, double high) {
  std::uint32_t state = 1;  // a linear congruential generator: fast, and good enough for timing
  return filled_array(shape, dtype, [&] {
    state = state * 1664525u + 1013904223u;
    return low + (high - low) * static_cast<double>(state >> 8) / (1 << 24);
  });
}

Array normal_array(const Shape& shape, DType dtype, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  std::normal_distribution<double> normal;
  return filled_array(shape, dtype, [&] { return normal(bits); });
}

double bytes_of(std::span<const Tensor> tensors) {
  double bytes = 0;
  for (const Tensor& t : tensors)
    bytes += static_cast<double>(t.numel()) * static_cast<double>(size_of(t.dtype()));
  return bytes;
}

}  // namespace tg::bench
