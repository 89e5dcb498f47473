// Profiles a program: measures its steps and compares them with the rates that its device can reach
// (ops/ceilings.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/core/run/cost.h>

namespace tg {

// The rates that a device reaches in a large copy and in a large matmul. measure_ceilings() in ops/ceilings.h
// measures them.
struct Ceilings {
  double copy = 0;                                // bytes per second, read plus written
  std::vector<std::pair<DType, double>> product;  // FLOP/s of a large matmul, by operand dtype
};

// The time of one step, or of several steps counted together.
struct StepTime {
  std::string name;             // name of the step, or kind of the summed steps
  int count = 1;                // number of steps
  double seconds = 0;           // measured time
  double flops = 0, bytes = 0;  // work according to work_of (core/run/cost.h)
  double least = 0;             // lower bound in seconds: bytes or FLOPs at the ceiling rates
};

// The result of profile().
struct Profile {
  double run = 0;               // seconds from the start of a run to its end
  double host = 0;              // seconds until the call that starts the run returns
  Ceilings ceilings;            // the rates to compare with
  std::vector<StepTime> steps;  // in the program's order
};

// Runs the program a few times to warm up, then `runs` times as a whole and `runs` times step by step. Times
// are medians. `start` starts one run. By default, a run uses the current inputs and fetches nothing.
Profile profile(Program& program, const Ceilings& ceilings, int runs,
                const std::function<Pending()>& start = {});

// Sums the steps by kind (kind_of in core/run/cost.h), longest time first.
std::vector<StepTime> by_op(const Program& program, const Profile& profile);

// Returns two tables, by op and for the `longest` steps: time, share of the total step time, rates, and the
// share of the ceiling rate. A share above 1 means that data was read from a cache. Steps are listed with the
// kernels that run them.
std::string profile_text(const Program& program, const Profile& profile, std::size_t longest = 10);

}  // namespace tg
