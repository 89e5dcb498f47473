// Casts of parameters at the start of a program: next to each other one kernel computes them
// (backends/cuda/fusion/cast_list.h). Models record each where a layer needs it.
#pragma once

#include <vector>

#include "core/compile/lower.h"

namespace tg::cuda {

// Moves the steps that cast a whole parameter and do nothing else before all others, in their order, if their
// results have no more than `most` bytes in all: so many stay in a GPU's caches until they are read, as each
// does that is cast just before. Returns whether that changed the order.
bool casts_first(const Graph& graph, std::vector<LoweredStep>& steps, std::size_t most);

}  // namespace tg::cuda
