// Fused elementwise steps that end in a reduction. If a sum, a mean, a maximum, … over the innermost axes
// reads the result of a fused elementwise step, one step computes both. It computes the elements row by row
// and reduces them in registers or in the first-level cache. The elements are stored only if a different step
// also reads them.
#pragma once

#include "core/compile/lower.h"
#include "core/graph/op_attrs.h"

namespace tg {

// Attributes of fused_reduction_op. Its inputs are the inputs of the elementwise part. Its results are the
// stored results of that part, followed by the result of the reduction. A 16-bit value that is stored is also
// rounded before the reduction, so that all readers see the same number. A value that is not stored is not
// rounded, as in any fused step.
struct FusedReduction {
  FusedAttrs chain;  // its last result is reduced; it is among the others if it is stored
  DType dtype;       // dtype of the reduced elements
  // layout as the result of the elementwise part, and, in that memory, as the input of the reduction
  Layout made, read;
  const Op* op;  // the reduction
  ReduceAttrs reduce;
  // Index of the elementwise part's last result among the stored results; −1 if it is not stored.
  int stored() const;
  std::string text() const;  // "mul(in0, in1) → sum(%0) over axes [1]", and "; stores %0"
  void fields(auto&& field) const { field("code", text()); }
};
extern const Op& fused_reduction_op;

// The elementwise part of a step, without its reduction; null for other steps.
const FusedAttrs* fused_text_of(const Op& op, const Attrs& attrs);
// The elementwise part and the reduction as a string; empty for other steps.
std::string fused_text(const Op& op, const Attrs& attrs);

class StepScheduler;

// Joins such pairs of steps, unless the scheduler rejects one.
void reduce_fused(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> outputs,
                  const StepScheduler& scheduler);

}  // namespace tg
