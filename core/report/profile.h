// Where a program's time goes, as shares of what its device can do (ops/ceilings.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/core/run/cost.h>

namespace tg {

// What a device reaches on programs that do nothing else: measure_ceilings() of ops/ceilings.h.
struct Ceilings {
  double copy = 0;                                // bytes a second, read plus written
  std::vector<std::pair<DType, double>> product;  // FLOP/s of a large matmul, by the operands' dtype
};

// One step, or several counted together.
struct StepTime {
  std::string name;
  int count = 1;
  double seconds = 0;
  double flops = 0, bytes = 0;  // by the ops' cost; each operand counted once, read or written
  double least = 0;             // seconds at the ceilings: of bytes or of FLOPs, the longer
};

struct Profile {
  double run = 0;   // seconds from starting a run to its end
  double host = 0;  // of these, until the call that started it returned
  Ceilings ceilings;
  std::vector<StepTime> steps;  // in the program's order
};

// Runs the program a few times to warm up, `runs` times as users do and `runs` times step by step; times are
// medians. `start` starts one run: by default with the inputs as they are, asking for no result.
Profile profile(Program& program, const Ceilings& ceilings, int runs,
                const std::function<Pending()>& start = {});

// Steps summed by kind, longest first.
std::vector<StepTime> by_op(const Program& program, const Profile& profile);

// A table by op, then of the `longest` steps, each with its share of the sum of all steps, its rates, and the
// share of the ceiling it reaches: above 1, what it read was in a cache.
std::string profile_text(const Program& program, const Profile& profile, std::size_t longest = 10);

}  // namespace tg
