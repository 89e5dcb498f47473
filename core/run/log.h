// The log of programs on standard error. The environment variable TG_LOG sets the level. Each level includes
// all lower levels:
// - 0: nothing; the default
// - 1: every compiled program: nodes, steps by kind, peak memory, compile time; every run: its time
// - 2: every step of every run: its time, and GB/s and GFLOP/s according to Op::cost
// - 3: the memory plan: every buffer with its offset, size, first and last step
// - 4: kernel, algorithm and tiles of every step
//
// At level 1 or higher, run() waits for the run to finish; at level 2 or higher, for each step.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/run/program.h>

namespace tg {

// Returns the level set by TG_LOG. Throws Error unless it is a number from 0 to 4.
int log_level();

// One buffer of a memory plan.
struct PlannedBuffer {
  std::string kind;  // "arena", "result", "input", "constant" or "parameter"
  // The first value in the buffer, and the number of further values: "gelu f32[2, 3] and 1 more".
  std::string holds;
  std::size_t bytes = 0;  // size in bytes
  // Bytes from the start of the arena, or of the block of inputs, results and constants; 0 for parameters.
  std::size_t offset = 0;
  int first = 0, last = -1;  // first and last step that use the buffer, if it is in the arena
};

// The log of one program.
class ProgramLog {
 public:
  // Starts the log of the next program; null at level 0. The compile time is measured from here to
  // compiled().
  static std::unique_ptr<ProgramLog> begin();
  int level() const { return level_; }  // the level when begin() was called

  // Logs a compiled program and, at level 3 or higher, its memory plan.
  void compiled(const Program::State& program, std::span<const PlannedBuffer> plan);
  // Logs the time of a run in seconds and, at level 2 or higher, the time of each step.
  void ran(const Program::State& program, double seconds, std::span<const double> steps);

 private:
  explicit ProgramLog(int level);
  const int level_, number_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::int64_t runs_ = 0;
};

}  // namespace tg
