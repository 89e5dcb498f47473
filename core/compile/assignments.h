// Assignments: the values that a program must compute, and how each assigned parameter gets its new value:
// written by the step that computes it, or copied at the end of the run.
#pragma once

#include <tilegrad/core/compile/compile.h>
#include "core/compile/lower.h"

namespace tg {

// The values that are computed whole and not overwritten before the end of the run.
struct Outputs {
  std::vector<ValueId> fetched;   // of each fetched tensor
  std::vector<ValueId> assigned;  // of each assignment
  std::vector<ValueId> all() const;
};

// Throws Error, ShapeError or DTypeError for a tensor of another graph and for a value that its parameter
// cannot hold. A value that is, or is a view of, a parameter that this program assigns stands for what the
// parameter held before: a copy of it is recorded, which is computed before the parameter changes.
Outputs outputs_of(Graph& graph, const std::vector<Tensor>& fetch, const std::vector<Assign>& assign);

// Throws Error for an update that Graph::must_assign names, if the program computes its value and does not
// assign it.
void require_updates(const Graph& graph, const Outputs& outputs, const std::vector<Assign>& assign);

// Throws Error if one of the parameters that a program uses is assigned and another one, of which it is a
// part (Parameter::part) or the whole, has elements in the same memory.
void check_parts(std::span<const Parameter> used, const std::vector<Assign>& assign);

// By assignment: whether the step that computes the value can write it straight into the parameter. It can if
// the value is a whole row-major result that is an output once, and no later step reads the parameter's old
// value.
std::vector<bool> written_directly(const Graph& graph, std::span<const LoweredStep> steps,
                                   const Outputs& outputs, const std::vector<Assign>& assign);

// Appends a copy step (LoweredStep::target) for every assignment that is not written directly.
void append_copies(const Graph& graph, std::vector<LoweredStep>& steps, const Outputs& outputs,
                   const std::vector<Assign>& assign, const std::vector<bool>& directly);

}  // namespace tg
