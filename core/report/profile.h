// Where a program's time goes, compared with the rates that its device can reach (ops/ceilings.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/core/run/cost.h>

namespace tg {

// The rates that a device reaches on a large copy and a large matmul: measure_ceilings() of ops/ceilings.h.
struct Ceilings {
  double copy = 0;                                // bytes a second, read plus written
  std::vector<std::pair<DType, double>> product;  // FLOP/s of a large matmul, by the operands' dtype
};

// One step, or several counted together.
struct StepTime {
  std::string name;
  int count = 1;
  double seconds = 0;
  double flops = 0, bytes = 0;  // as work_of (core/run/cost.h)
  double least = 0;  // seconds that bytes or FLOPs, whichever take longer, would need at the ceilings
};

struct Profile {
  double run = 0;   // seconds from the start of a run to its end
  double host = 0;  // of these, until the call that starts it returns
  Ceilings ceilings;
  std::vector<StepTime> steps;  // in the program's order
};

// Runs the program a few times to warm up, then `runs` times as a whole and `runs` times step by step; times
// are medians. `start` starts one run; by default with the inputs as they are, fetching nothing.
Profile profile(Program& program, const Ceilings& ceilings, int runs,
                const std::function<Pending()>& start = {});

// Steps summed by kind, longest first.
std::vector<StepTime> by_op(const Program& program, const Profile& profile);

// Two tables, by op and of the `longest` steps: time, share of the time of all steps, rates, and the share of
// the ceiling that they reach. A share above 1 means that data came from a cache. Steps are named with the
// kernels that run them.
std::string profile_text(const Program& program, const Profile& profile, std::size_t longest = 10);

}  // namespace tg
