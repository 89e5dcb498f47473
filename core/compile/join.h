// Concat without copies: if each input of a concat is a whole result that nothing else reads, its producer
// writes it straight into the concat's output, and the concat needs no step. The input may be a permuted view
// of the result. contiguous() is a concat of one.
#pragma once

#include <unordered_map>

#include "core/compile/lower.h"

namespace tg {

// Where a joined value lies: in the memory of another, with this layout.
struct Inside {
  ValueId whole;
  Layout layout;
};

using Joined = std::unordered_map<ValueId, Inside>;

// Removes such concats from the steps and returns where their inputs go. Producers must be able to write
// results of any strides (Op::strided_results); `outputs` keep memory of their own.
Joined join_in_place(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> outputs);

}  // namespace tg
