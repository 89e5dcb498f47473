// Keeps a program within CompileOptions::memory_budget: by a different order of its steps, by recomputing
// values, and with an error if both are not enough.
#pragma once

#include <string>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/run/program.h>
#include "core/compile/passes.h"

namespace tg {

// Order: a step may run earlier than recorded if large values then become free earlier. For example, both
// GEMMs of a chunk of logits run before the next chunk's logits. Nothing is computed twice, so it costs no
// time.
//
// Reorders the steps so that the arena needs less, if such an order is found, and returns whether it was.
// Results are bitwise identical: a step runs after the steps that compute its inputs, and a parameter changes
// after all steps that read it. Neighbors that a backend computes together stay neighbors. The time is about
// linear in the number of steps.
//
// The method is greedy. Steps run in recording order, with one exception. As soon as the last readers of a
// value, with the steps that they need, would free more bytes than their results occupy, they run next. Such
// a group has at most 32 steps, and during it the live memory stays at or below the peak of the recorded
// order.
bool order_for_memory(const Graph& graph, std::vector<LoweredStep>& steps, const Scheduled& known);

struct Recomputed {
  std::size_t before = 0, arena = 0;    // bytes of the arena without and with recomputation
  MemoryReport::Recomputed again = {};  // without `saved`
};

// Recomputation (rematerialization): values are recomputed directly before their late uses instead of being
// kept. Cheap values are chosen first: outputs of norms, activations and low-precision weight copies. If
// these do not suffice, GEMMs and attention follow. In contrast, checkpoint() recomputes whole parts of a
// model.
//
// Adds steps that recompute values until the arena needs at most `arena` bytes, or until nothing more can be
// saved. A value without early uses moves to its first use instead. Results are bitwise identical. The method
// is greedy. Each round applies the choice that frees the most bytes at the peak for its time (price_of in
// core/run/cost.h). If the result is too large, it starts again and also considers GEMMs and attention. At
// the end it undoes choices that turned out to be unnecessary, most expensive first. It records copies of the
// recomputed nodes.
Recomputed recompute_within(std::size_t arena, Graph& graph, std::vector<LoweredStep>& steps,
                            const Scheduled& known);

// Thrown if a program cannot meet its memory_budget.
struct BudgetTooSmall : OutOfMemory {
  BudgetTooSmall(const std::string& text, std::size_t bytes) : OutOfMemory(text), least(bytes) {}
  std::size_t least;  // the smallest sufficient budget
};

}  // namespace tg
