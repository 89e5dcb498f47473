// Measures the time of code, programs (also with cold caches on a GPU), training steps, and runs on all
// ranks. The result is the best or the median of many runs. The header also has functions for input values
// and temporary files.
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

// Seconds on a monotonic clock.
double now();

// Calls f repeatedly for `seconds`, at least three times.
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

// Returns the seconds of the fastest of `count` calls.
template <class F>
double best_seconds(double seconds, F&& f) {
  double best = std::numeric_limits<double>::infinity();
  repeat(seconds, [&] { best = std::min(best, seconds_of(f)); });
  return best;
}

double median(std::vector<double> values);  // for an even number of values, the upper of the two in the
                                            // middle

// The median of the results of `count` calls of f.
template <class F>
double median_of(double seconds, F&& f) {
  std::vector<double> values;
  repeat(seconds, [&] { values.push_back(f()); });
  return median(std::move(values));
}

// Returns the seconds of a run of the program with its current inputs. On the CPU, this is the fastest of
// many runs. On a GPU, it is the median by the GPU's clock.
double time_of_run(Program& program, const Settings& settings);
double profiled_seconds(Program& program);  // sum over all steps of a run

// The seconds of time_of_run, and the highest peak rate measured between runs, which reflects the current
// clock rate.
struct Timing {
  double seconds, peak;  // GFLOP/s
};
Timing run_and_peak(Program& program, DType dtype, int threads, const Settings& settings,
                    const Machine& machine);

// Times programs on a GPU with cold caches, without waiting for the host: single runs, or several calls in a
// CUDA graph.
class ColdRuns {
 public:
  explicit ColdRuns(const Settings& settings);

  // The median time of a run in seconds, by the GPU's clock. Measures for half of `settings.seconds` (150 ms
  // by default), after a warm-up of a tenth of it (30 ms). Before each run, a copy of `settings.copy_bytes`
  // evicts everything from the caches. The copy and the run are queued together, so the GPU does not wait in
  // between.
  double median(Program& program);

  // The number of calls that a program needs so that each call finds cold caches. Each call reads `bytes`.
  // Before the first call runs again, all calls together have read `settings.copy_bytes`.
  int calls(double bytes) const;
  // The median time of a call in seconds, for a program of several calls that form one CUDA graph. Runs are
  // queued for 10 ms at a time, so the overhead of the host is small.
  double median_in_graph(Program& program, int calls, const Tensor& output);

 private:
  double one_run(Program& program);
  double seconds_, bytes_;
  std::optional<Program> flush_;
};

// The data of a training step: ids that cover the vocabulary. They are the same in every run.
struct TrainBatch {
  std::vector<std::int32_t> tokens, targets;
  TrainBatch(std::int64_t rows, const nn::ModelConfig& config);
};

struct StepTimes {
  double best, median;       // seconds; on a GPU the host waits only after every 20 steps
  double host, host_median;  // seconds for which a step keeps the host busy
  double peak;               // GEMM rate in GFLOP/s; on the CPU the highest of the measurements between steps
  int runs;
};
inline constexpr double bench_learning_rate = 1e-4;
StepTimes time_steps(train::TrainingProgram& training, const TrainBatch& batch, int threads,
                     const Settings& settings, const Machine& machine);

// Numbers of runs on each rank. The numbers are fixed and do not depend on time, because all ranks must run
// equally often.
struct RankRuns {
  int warm_up, runs, steps;
};
// Returns the seconds per step: the median over runs of several consecutive steps. A run begins when all
// ranks have arrived. start() starts a step and returns its Pending.
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

// Returns input values that are uniform in [low, high), or integers in that range for integer dtypes. They
// are the same in every call.
Array random_array(const Shape& shape, DType dtype, double low = -1, double high = 1);

// Returns values from N(0, 1). They are the same in every call with the same seed.
Array normal_array(const Shape& shape, DType dtype, std::uint64_t seed);

double bytes_of(std::span<const Tensor> tensors);

// The path of a temporary file or folder of this process. The destructor removes it.
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
