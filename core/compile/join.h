// Joins without copies: where every input of a concat is a whole result that only the concat reads, in any
// order of its axes, its maker writes it inside the concat's output, and the concat takes no step.
// contiguous() is a concat of one.
#pragma once

#include <unordered_map>

#include "core/compile/lower.h"

namespace tg {

// A value that lies inside another's memory, and how.
struct Inside {
  ValueId whole;
  Layout layout;
};

// Removes such concats from the steps, and says where the values that they joined go. Makers have to take
// results of any strides (Op::strided_results); `wanted` values keep memory of their own.
std::unordered_map<ValueId, Inside> join_in_place(const Graph& graph, std::vector<LoweredStep>& steps,
                                                  std::span<const ValueId> wanted);

}  // namespace tg
