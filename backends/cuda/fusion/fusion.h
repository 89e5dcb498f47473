// Rules for adjacent steps that one kernel computes.
#pragma once

#include <optional>
#include <span>

#include <tilegrad/core/run/backend.h>
#include <tilegrad/core/run/step.h>
#include "backends/cuda/runtime/kernel.h"
#include "core/compile/lower.h"

namespace tg::cuda {

// The steps of a program that have no plan yet, and the means to plan them.
struct Upcoming {
  std::span<const Step> steps;
  const PrepareOptions& options;
  const Gpu& gpu;
  const WrittenMemory& written;

  Call call(std::size_t i) const {
    const Step& s = steps[i];
    return {s.in, s.out, &s.attrs, gpu, options.tf32, options.in_order, options.batch_invariant, &written};
  }
  // Whether step i exists and has this relation to the previous step.
  template <class Related>
  bool is_next(Related related, std::size_t i) const {
    return i < steps.size() && related(steps[i - 1], steps[i]);
  }
};

// A match of a rule: the kernel of step `made_by` computes the first `count` upcoming steps. If `count` is 0,
// the rule does not match.
struct FusionMatch {
  std::size_t count = 0, made_by = 0;
};

// A fusion rule. plan() returns a plan that launches the kernel, or null if the kernel cannot compute these
// steps.
struct FusionRule {
  const char* name;
  FusionMatch (*match)(const Upcoming&);
  PlanPtr (*plan)(const Upcoming&, const FusionMatch&);
};

struct Fusion {
  FusionMatch steps;
  PlanPtr plan;
};

// Returns the steps and the plan of the first rule that matches and has a plan, in the order of the list in
// fusion.cpp. If no rule has a plan, `steps` is the first step and `plan` is null.
Fusion fusion_of(const Upcoming& next);

// ---- adjacent steps that a kernel can compute ----

// Returns the function that the step applies to its operand. If it computes anything else, returns none.
inline Epilogue epilogue_of(const Step& step) {
  const Op* op = only_op_of(step);
  return op ? op->epilogue : Epilogue::none;
}

// Whether `next` applies an epilogue (Op::epilogue) to the whole result of the previous GEMM and computes
// nothing else.
bool is_epilogue_of(const Step& product, const Step& next);

// Whether `sum` computes only left + right, and the next GEMM adds this sum to its result.
bool is_sum_for(const Step& sum, const Step& product);

// Whether `norm` is the layer_norm or rms_norm of the next GEMM's left operand.
bool is_norm_for(const Step& norm, const Step& product);

// Returns an operand of such a sum. It has the shape of the GEMM's result, or is one row that is added to all
// rows. The operand itself may have different leading axes. Returns nullopt if it has neither layout.
std::optional<Arg> in_shape_of(const Arg& a, const Arg& result);

// Whether `next` only adds a tensor of the same shape to z_x of the previous layer_norm_backward or
// rms_norm_backward. This tensor is the gradient of the residual connection.
bool is_sum_of(const Step& gradient, const Step& next);

// Returns a plan for the gradient's kernel that also computes this sum. The result is bitwise identical to a
// separate step. If no other step reads z_x (`writes_z_x` is false), the kernel does not write z_x. Returns
// null if the kernel cannot compute the sum.
PlanPtr plan_with_sum(const Call& gradient, const Step& sum, bool writes_z_x);

// Whether `assign` writes rows of keys and values into the cache that the next attention step reads.
bool appends_cache_for(const Step& assign, const Step& attention);

// Returns whether a step sums floating-point elements over some axes, with at most 32 terms per sum and 2²⁰
// in total. An example is the gradient of a positional embedding, summed over a small batch. A single thread
// then computes each sum and adds its terms in order. The kernels for other sums split each sum among
// threads.
bool is_sum_of_few(const Step& step);

// Returns the number of leading steps that one kernel can compute as a list of casts. All of these steps cast
// f32 to the same 16-bit type, and their operands are contiguous. No step reads an earlier result or
// overwrites an earlier operand. A result of 0 or 1 means that there is no list.
std::size_t casts_together(std::span<const Step> steps);

}  // namespace tg::cuda
