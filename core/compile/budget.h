// Keeps a program within CompileOptions::memory_budget. It reorders steps and recomputes values. If this does
// not suffice, it throws an error.
#pragma once

#include <string>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/run/program.h>
#include "core/compile/passes.h"

namespace tg {

// Reordering: a step may run earlier than recorded if large values then become free earlier. For example, two
// GEMMs read each chunk of logits. They run before the logits of the next chunk are computed. Nothing is
// computed twice, so reordering costs no time.
//
// Reorders the steps if it finds an order that needs a smaller arena. Returns whether it found one. Results
// are bitwise identical: a step still runs after the steps that compute its inputs, and a parameter still
// changes after all steps that read its old value. Neighbors that a backend computes together stay neighbors.
// The time is about linear in the number of steps.
//
// The method is greedy. Steps run in recording order, with one exception. A group consists of the last
// readers of a value and the steps that these readers need. If a group would free more bytes than its results
// occupy, the group runs next. A group has at most 32 steps. While a group runs, the live memory must not
// exceed the peak of the recorded order.
bool order_for_memory(const Graph& graph, std::vector<LoweredStep>& steps, const Scheduled& known);

struct Recomputed {
  std::size_t before = 0, arena = 0;    // bytes of the arena without and with recomputation
  MemoryReport::Recomputed again = {};  // without `saved`
};

// Recomputation (rematerialization): instead of keeping values, the program recomputes them directly before
// their late uses. Cheap values are chosen first: outputs of norms, activations and low-precision weight
// copies. If these do not suffice, GEMMs and attention follow. In contrast, checkpoint() recomputes complete
// sections of a model.
//
// Adds steps that recompute values until the arena needs at most `arena` bytes, or until nothing more can be
// saved. If a value has no early use, its step moves to the first use. Results are bitwise identical. The
// method is greedy. Each round applies the choice with the best ratio of saved memory to added time: the
// bytes that it frees at the peak, divided by price_of (core/run/cost.h). If the result is too large, the
// search starts again and also considers GEMMs and attention. At the end, unnecessary choices are undone,
// most expensive first. Recomputed nodes are recorded as copies in the graph.
Recomputed recompute_within(std::size_t arena, Graph& graph, std::vector<LoweredStep>& steps,
                            const Scheduled& known);

// Thrown if a program cannot meet its memory_budget.
struct BudgetTooSmall : OutOfMemory {
  BudgetTooSmall(const std::string& text, std::size_t bytes) : OutOfMemory(text), least(bytes) {}
  std::size_t least;  // the smallest sufficient budget
};

}  // namespace tg
