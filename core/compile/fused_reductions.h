// Fused elementwise steps that end in a reduction. If a reduction over the innermost axes, such as a sum,
// reads the result of a fused elementwise step, one step computes both. This step computes the elements row
// by row and reduces them in registers or in the first-level cache. It stores the elements only if another
// step also reads them.
#pragma once

#include "core/compile/lower.h"
#include "core/graph/op_attrs.h"

namespace tg {

// Attributes of fused_reduction_op. Its inputs are the inputs of the elementwise part. Its results are the
// stored results of that part, followed by the result of the reduction. If a 16-bit value is stored, it is
// also rounded before the reduction, so that all readers get the same number. If it is not stored, it is not
// rounded, as in any fused step.
struct FusedReduction {
  FusedAttrs chain;  // the elementwise part; its last result is reduced
  DType dtype;       // dtype of the reduced elements
  // Layouts of the reduced elements: `made` is their layout as a result, `read` as the input of the
  // reduction.
  Layout made, read;
  const Op* op;  // the reduction
  ReduceAttrs reduce;
  // Index of the elementwise part's last result among the stored results; −1 if it is not stored.
  int stored() const;
  std::string text() const;  // "mul(in0, in1) → sum(%0) over axes [1]", and "; stores %0"
  void fields(auto&& field) const { field("code", text()); }
};
extern const Op& fused_reduction_op;

// Returns the elementwise part of a fused step, with or without a reduction. Null for other steps.
const FusedAttrs* fused_text_of(const Op& op, const Attrs& attrs);
// The elementwise part and the reduction as a string; empty for other steps.
std::string fused_text(const Op& op, const Attrs& attrs);

class StepScheduler;

// Joins each such pair of steps that the scheduler accepts.
void reduce_fused(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> outputs,
                  const StepScheduler& scheduler);

}  // namespace tg
