// Merging: neighbouring fused steps that read the same memory become one step with several results, which
// reads it once. Examples are the gradients of an op with several operands, and a value with the steps that
// use it. Values that are then read only inside the step are not stored.
#pragma once

#include "core/compile/lower.h"

namespace tg {

void merge_fused(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> outputs);

}  // namespace tg
