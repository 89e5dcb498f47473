// What programs tell on standard error, as far as TG_LOG in the environment asks for it. Each level has those
// before it:
//   0  nothing, as without TG_LOG
//   1  every compiled program: nodes, steps by kind, peak memory, time to compile; every run: its time
//   2  every step of every run: time, GB/s and GFLOP/s by the op's own account
//   3  the plan: every buffer, its place, its size and the steps it lives through
//   4  every step's kernel, algorithm and tiles
// From level 1 on a run waits for its end, from level 2 on it waits after every step.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/run/program.h>

namespace tg {

// TG_LOG as it is now. Throws Error for anything but a number from 0 to 4.
int log_level();

// One buffer of a plan.
struct PlannedBuffer {
  std::string kind;   // "arena", "result", "input", "constant", "parameter"
  std::string holds;  // what lies in it first, and how many more
  std::size_t bytes = 0;
  std::size_t offset = 0;    // in the arena, or in the block of inputs, results and constants; parameters: 0
  int first = 0, last = -1;  // steps; buffers of the arena take the places of others before and after
};

// One program's account of itself.
class ProgramLog {
 public:
  // For the next program; null where nothing is asked for. Time counts from here to compiled().
  static std::unique_ptr<ProgramLog> begin();
  int level() const { return level_; }

  void compiled(const Program::State& program, std::span<const PlannedBuffer> plan);
  // Seconds of a whole run, and of its steps from level 2 on.
  void ran(const Program::State& program, double seconds, std::span<const double> steps);

 private:
  explicit ProgramLog(int level);
  const int level_, number_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::int64_t runs_ = 0;
};

}  // namespace tg
