// Merging: neighbouring fused steps that read the same memory become one step with several results, which
// passes over it once: the gradients of an op with several operands, or a value and what is made of it. What
// nobody outside the step reads any more is not stored.
#pragma once

#include "core/compile/lower.h"

namespace tg {

void merge_fused(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> wanted);

}  // namespace tg
