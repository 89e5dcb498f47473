// What keeps a program within CompileOptions::memory_budget: another order of its steps, values that are
// computed again, and the error if both are not enough.
#pragma once

#include <string>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/run/program.h>
#include "core/compile/passes.h"

namespace tg {

// Order: steps run earlier than they were recorded where large values are then free earlier, such as both
// products of a chunk of logits before the next chunk's logits. It computes nothing twice and costs no time.
//
// Puts the steps in an order in which the arena needs less, if it finds one, and returns whether it did.
// Results have the same bits: a step runs after those that compute what it reads, a parameter changes after
// all have read it, and neighbours that a backend computes together stay neighbours. About linear in the
// number of steps.
//
// Greedy: the steps run as they were recorded. But as soon as the last readers of a value, with what they
// still need, would free more bytes than their results take, they are next. Such a group is small (32 steps
// at most), and at no step of it more is alive than at the peak of the recorded order.
bool order_for_memory(const Graph& graph, std::vector<LoweredStep>& steps, const Scheduled& known);

struct Recomputed {
  std::size_t before = 0, arena = 0;    // bytes of the arena without and with it
  MemoryReport::Recomputed again = {};  // all but `saved`
};

// Recomputation, or rematerialisation: values are computed again right before their late uses instead of
// being kept in between. First those that are cheap, such as outputs of norms, activations and half copies of
// weights. Where these are not enough, products and attention as well. checkpoint(), in contrast, runs whole
// parts of a model again.
//
// Adds steps that compute values again until the arena needs at most `arena` bytes, or until no more can be
// saved; what is no longer used early moves to its first use. Results have the same bits as without it.
// Greedy: in each round the choice that frees the most bytes at the step where most are alive, for its time
// (price_of in core/run/cost.h). If that does not fit, it begins again with products and attention among the
// choices. In the end what turned out not to be needed is undone, most expensive first.
// Records copies of the nodes that are computed again.
Recomputed recompute_within(std::size_t arena, Graph& graph, std::vector<LoweredStep>& steps,
                            const Scheduled& known);

// What is thrown where a program cannot keep its memory_budget.
struct BudgetTooSmall : OutOfMemory {
  BudgetTooSmall(const std::string& text, std::size_t bytes) : OutOfMemory(text), least(bytes) {}
  std::size_t least;  // budget that would do
};

}  // namespace tg
