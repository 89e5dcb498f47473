// The log of programs on standard error. The environment variable TG_LOG sets its level; each includes those
// below:
//   0  nothing, as without TG_LOG
//   1  every compiled program: nodes, steps by kind, peak memory, time to compile; every run: its time
//   2  every step of every run: its time, and GB/s and GFLOP/s according to Op::cost
//   3  the memory plan: every buffer with its offset, its size and its first and last step
//   4  every step's kernel, algorithm and tiles
// From level 1 on run() waits for the end of the run, from level 2 on for the end of every step.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/run/program.h>

namespace tg {

// The level that TG_LOG sets now. Throws Error for anything but a number from 0 to 4.
int log_level();

// One buffer of a plan.
struct PlannedBuffer {
  std::string kind;   // "arena", "result", "input", "constant", "parameter"
  std::string holds;  // the first value that it holds, and the number of others: "gelu f32[2, 3] and 1 more"
  std::size_t bytes = 0;
  std::size_t offset = 0;    // in the arena, or in the block of inputs, results and constants; parameters: 0
  int first = 0, last = -1;  // steps, for buffers of the arena
};

// The log of one program.
class ProgramLog {
 public:
  // For the next program; null at level 0. Compile time is measured from here to compiled().
  static std::unique_ptr<ProgramLog> begin();
  int level() const { return level_; }

  void compiled(const Program::State& program, std::span<const PlannedBuffer> plan);
  // Seconds of a whole run, and from level 2 on of each of its steps.
  void ran(const Program::State& program, double seconds, std::span<const double> steps);

 private:
  explicit ProgramLog(int level);
  const int level_, number_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::int64_t runs_ = 0;
};

}  // namespace tg
