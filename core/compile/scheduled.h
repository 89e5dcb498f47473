// What the compiler knows of a program when its steps are final, but for their order and their memory.
#pragma once

#include "core/compile/assignments.h"
#include "core/compile/scheduler.h"

namespace tg {

struct Scheduled {
  const Joined& joined;
  const Outputs& outputs;
  const std::vector<Assign>& assign;
  const std::vector<bool>& directly;  // see written_directly
  const Scheduler& scheduler;
};

}  // namespace tg
