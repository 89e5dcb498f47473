// Chains that end in a reduction: where a sum, a mean, an extreme, … over the innermost axes reads the result
// of a chain of pointwise ops, one step computes both. It makes the chain's numbers row by row and reduces
// them where they are, in registers or in the first-level cache. The numbers before the reduction are stored
// only if another step reads them.
#pragma once

#include "core/compile/lower.h"
#include "core/graph/op_attrs.h"

namespace tg {

// The attributes of reduced_chain_op. Its inputs are the chain's; its results are those of the chain that are
// stored, and then that of the reduction. A value of a half type that is stored is reduced as it is stored:
// all its readers find the same number. One that is not is not rounded, as in any chain.
struct ReducedChain {
  FusedAttrs chain;   // the last of its results is the one that is reduced; it is among the others if stored
  DType dtype;        // of the numbers that are reduced
  Layout made, read;  // their layout as the chain's result and, in that memory, as the reduction's input
  const Op* op;       // the reduction
  ReduceAttrs reduce;
  // Whether the chain's last result is stored, which is then its result of this number; -1 if it is not.
  int stored() const;
  std::string text() const;  // "mul(in0, in1) → sum(%0) over axes [1]", and "; stores %0"
  void fields(auto&& field) const { field("code", text()); }
};
extern const Op& reduced_chain_op;

// The chain that a step computes, with the reduction at its end; null for other steps.
const FusedAttrs* chain_of(const Op& op, const Attrs& attrs);
// What it computes, as text; empty for other steps.
std::string chain_text(const Op& op, const Attrs& attrs);

class StepScheduler;

// Joins them, unless the scheduler refuses.
void reduce_chains(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> outputs,
                   const StepScheduler& scheduler);

}  // namespace tg
