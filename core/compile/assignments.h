// Assignments: the values that a program must compute, and how each assigned parameter gets its new value.
// The step that computes the value writes it directly, or it is copied at the end of the run.
#pragma once

#include <tilegrad/core/compile/compile.h>
#include "core/compile/lower.h"

namespace tg {

// The values that are stored completely and not overwritten before the end of the run.
struct Outputs {
  std::vector<ValueId> fetched;   // one per fetched tensor
  std::vector<ValueId> assigned;  // one per assignment
  std::vector<ValueId> all() const;
};

// Returns the outputs. A value that is, or is a view of, a parameter that this program assigns means the
// parameter's old value. The function records a copy of it, which is computed before the parameter changes.
// Throws Error, ShapeError or DTypeError for a tensor of a different graph and for a value that does not
// match its parameter.
Outputs outputs_of(Graph& graph, const std::vector<Tensor>& fetch, const std::vector<Assign>& assign);

// Throws Error if the program computes a value that Graph::must_assign requires to be assigned, and does not
// assign it.
void require_updates(const Graph& graph, const Outputs& outputs, const std::vector<Assign>& assign);

// Throws Error if a program assigns a parameter and also uses a different parameter with elements in the same
// memory, because one is a part of the other (Parameter::part).
void check_parts(std::span<const Parameter> used, const std::vector<Assign>& assign);

// Per assignment: whether the step that computes the value can write it directly into the parameter. This
// requires that the value is a complete row-major result, that it is an output only once, and that no later
// step reads the parameter's old value.
std::vector<bool> written_directly(const Graph& graph, std::span<const LoweredStep> steps,
                                   const Outputs& outputs, const std::vector<Assign>& assign);

// Appends a copy step (LoweredStep::target) for each assignment that is not written directly.
void append_copies(const Graph& graph, std::vector<LoweredStep>& steps, const Outputs& outputs,
                   const std::vector<Assign>& assign, const std::vector<bool>& directly);

}  // namespace tg
