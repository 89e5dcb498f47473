// Collective ops that a rank runs as soon as their operands exist (Op::early), which it then frees before the
// end of the backward pass. With reductions of a few gradients each that is ZeRO stage 2 (Rajbhandari et al.,
// 2020). A backend may run them a little later, at the same time as a step that leaves resources for an
// exchange.
#pragma once

#include <vector>

#include "core/compile/scheduler.h"

namespace tg {

void scatter_early(const Graph& graph, std::vector<LoweredStep>& steps, const Scheduler& scheduler);

}  // namespace tg
