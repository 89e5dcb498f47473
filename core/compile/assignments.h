// Assignments: the values that a program must compute, and how each assigned parameter gets its new value. If
// possible, the step that computes the value writes it directly into the parameter. Otherwise the value is
// copied into the parameter at the end of the run.
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

// Returns the outputs. An output may be a parameter that this program assigns, or a view of such a parameter.
// The output is then the parameter's old value. For this, the function records a copy, which is computed
// before the parameter changes. Throws Error for a tensor of a different graph. Throws ShapeError or
// DTypeError for a value that does not match its parameter.
Outputs outputs_of(Graph& graph, const std::vector<Tensor>& fetch, const std::vector<Assign>& assign);

// Some values must be assigned (Graph::must_assign). Throws Error if the program computes such a value but
// does not assign it.
void require_updates(const Graph& graph, const Outputs& outputs, const std::vector<Assign>& assign);

// Throws Error if a program assigns a parameter and also uses a different parameter in the same memory. This
// happens if one parameter is a part of the other (Parameter::part).
void check_parts(std::span<const Parameter> used, const std::vector<Assign>& assign);

// Returns, per assignment, whether the step that computes the value can write it directly into the parameter.
// This requires that:
// - the value is a complete row-major result
// - the value is an output only once
// - no later step reads the parameter's old value
std::vector<bool> written_directly(const Graph& graph, std::span<const LoweredStep> steps,
                                   const Outputs& outputs, const std::vector<Assign>& assign);

// Appends a copy step (LoweredStep::target) for each assignment that is not written directly.
void append_copies(const Graph& graph, std::vector<LoweredStep>& steps, const Outputs& outputs,
                   const std::vector<Assign>& assign, const std::vector<bool>& directly);

}  // namespace tg
