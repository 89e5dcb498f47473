// Order, for CompileOptions::memory_budget: steps run earlier than they were recorded where large values are
// then free earlier, such as both products of a chunk of logits before the next chunk's logits. It computes
// nothing twice and costs no time.
#pragma once

#include "core/compile/scheduled.h"

namespace tg {

// Puts the steps in an order in which the arena needs less, if it finds one, and returns whether it did.
// Results have the same bits: a step runs after those that compute what it reads, a parameter changes after
// all have read it, and neighbours that a backend computes together stay neighbours. About linear in the
// number of steps.
//
// Greedy: the steps run as they were recorded. But as soon as the last readers of a value, with what they
// still need, would free more bytes than their results take, they are next. Such a group is small (32 steps
// at most), and at no step of it more is alive than at the peak of the recorded order.
bool order_for_memory(const Graph& graph, std::vector<LoweredStep>& steps, const Scheduled& known);

}  // namespace tg
