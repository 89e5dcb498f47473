// How long something takes: the best or the median of many runs in a given time, of programs on the CPU and
// on a GPU, with cold caches, of training steps, and of what all ranks run. And what programs read: values
// for their inputs, and temporary files.
#pragma once

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <vector>

#include <tilegrad/train/training.h>
#include "core/os/process.h"
#include "core/run/ranks.h"
#include "tools/bench/machine.h"

namespace tg::bench {

// Seconds on a clock that only goes forward.
double now();

// Calls f until `seconds` have passed, at least three times.
template <class F>
void repeat(double seconds, F&& f) {
  const double end = now() + seconds;
  for (int n = 0; n < 3 || now() < end; ++n) f();
}

template <class F>
double seconds_of(F&& f) {
  const double start = now();
  f();
  return now() - start;
}

// The seconds of the fastest of so many calls.
template <class F>
double best_seconds(double seconds, F&& f) {
  double best = std::numeric_limits<double>::infinity();
  repeat(seconds, [&] { best = std::min(best, seconds_of(f)); });
  return best;
}

double median(std::vector<double> values);  // the upper of two

// The median of what so many calls of f return.
template <class F>
double median_of(double seconds, F&& f) {
  std::vector<double> values;
  repeat(seconds, [&] { values.push_back(f()); });
  return median(std::move(values));
}

// Seconds of a run of the program, with its current inputs: on the CPU the fastest of many runs, on a GPU the
// median, by the GPU's clock.
double time_of_run(Program& program, const Settings& settings);
double profiled_seconds(Program& program);  // of all steps of a run

// The seconds of time_of_run, and the highest peak measured between runs, at the clock rate of the run.
struct Timing {
  double seconds, peak;  // GFLOP/s
};
Timing run_and_peak(Program& program, DType dtype, int threads, const Settings& settings,
                    const Machine& machine);

// Times programs on a GPU with cold caches and without waiting for the host: one run at a time, or several
// calls in a CUDA graph.
class ColdRuns {
 public:
  explicit ColdRuns(const Settings& settings);

  // Median seconds, by the GPU's clock, of the runs of half of `settings.seconds`, after a tenth of it to
  // warm up: 150 and 30 ms by default. Before each run `settings.copy_bytes` are moved, which leaves nothing
  // of it in the caches. That is in the queue when the run is, so the GPU goes from one to the other.
  double median(Program& program);

  // How many calls that read so many bytes a program needs for all to find cold caches: by the time that the
  // first is run again, `settings.copy_bytes` have been read.
  int calls(double bytes) const;
  // Median seconds of a call of a program of so many, which are one CUDA graph. Runs are queued
  // for 10 ms at a time, so that the host's part in it is small.
  double median_in_graph(Program& program, int calls, const Tensor& output);

 private:
  double one_run(Program& program);
  double seconds_, bytes_;
  std::optional<Program> flush_;
};

// The data of a training step: ids that are spread over the vocabulary, the same in every run.
struct TrainBatch {
  std::vector<std::int32_t> tokens, targets;
  TrainBatch(std::int64_t rows, const nn::ModelConfig& config);
};

struct StepTimes {
  double best, median;       // seconds; on a GPU of steps that follow each other, 20 before the host waits
  double host, host_median;  // of these, for which a step keeps the host busy
  double peak;               // GFLOP/s of products: on the CPU the highest of measurements between the steps
  int runs;
};
inline constexpr double bench_learning_rate = 1e-4;
StepTimes time_steps(train::TrainingProgram& training, const TrainBatch& batch, int threads,
                     const Settings& settings, const Machine& machine);

// As many runs on all ranks, which wait for each other: not as many as fit in some time.
struct RankRuns {
  int warm_up, runs, steps;
};
// Seconds of a step: the median of runs of steps that follow each other, once all ranks are there. start()
// begins a step and returns the Pending of it.
template <class F>
double seconds_of_step(Communicator& ranks, const RankRuns& counts, F&& start) {
  const auto run = [&](int count) {
    Pending last;
    return seconds_of([&] {
             for (int i = 0; i < count; ++i) last = start();
             last.wait();
           }) /
           count;
  };
  run(counts.warm_up);
  gather_one(ranks, std::byte{});
  std::vector<double> seconds;
  for (int i = 0; i < counts.runs; ++i) seconds.push_back(run(counts.steps));
  return median(std::move(seconds));
}

// Values for inputs: uniform in [low, high), or whole numbers of that range for integers; always the same.
Array random_array(const Shape& shape, DType dtype, double low = -1, double high = 1);

// Values drawn from N(0, 1); always the same for one seed.
Array normal_array(const Shape& shape, DType dtype, std::uint64_t seed);

double bytes_of(std::span<const Tensor> tensors);

// A file or folder of this process, which is removed in the end.
class TemporaryPath {
 public:
  TemporaryPath(const std::string& begin, const std::string& end)
      : path_(std::filesystem::temp_directory_path() / (begin + std::to_string(os::process_id()) + end)) {}
  ~TemporaryPath() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace tg::bench
