// What the compiler knows of a program when its steps are final, but for their order and their memory.
#pragma once

#include "core/compile/assignments.h"
#include "core/compile/join.h"

namespace tg {

struct Scheduled {
  const Joined& joined;
  const Outputs& outputs;
  const std::vector<Assign>& assign;
  const std::vector<bool>& directly;  // see written_directly
  // A backend may compute gelu_tanh as part of the product before it, from numbers that are not rounded yet
  // (core/compile/neighbours.h). By itself it would have other bits.
  bool has_epilogues;
};

}  // namespace tg
