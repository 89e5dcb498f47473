// Rules for steps next to each other that one kernel computes.
#pragma once

#include <optional>
#include <span>

#include <tilegrad/core/run/backend.h>
#include <tilegrad/core/run/step.h>
#include "backends/cuda/runtime/kernel.h"
#include "core/compile/lower.h"

namespace tg::cuda {

// The steps of a program that have no plan yet, and how to plan them.
struct Upcoming {
  std::span<const Step> steps;
  const PrepareOptions& options;
  const Gpu& gpu;
  const WrittenMemory& written;

  Call call(std::size_t i) const {
    const Step& s = steps[i];
    return {s.in, s.out, &s.attrs, gpu, options.tf32, options.in_order, options.batch_invariant, &written};
  }
  // Whether the step exists, and the relation holds between it and the step before it.
  template <class Related>
  bool is_next(Related related, std::size_t i) const {
    return i < steps.size() && related(steps[i - 1], steps[i]);
  }
};

// The first `count` upcoming steps, which the kernel of step `made_by` computes. 0: the rule does not match.
struct FusionMatch {
  std::size_t count = 0, made_by = 0;
};

// A rule's plan launches the kernel. Null: its kernel cannot compute these steps.
struct FusionRule {
  const char* name;
  FusionMatch (*match)(const Upcoming&);
  PlanPtr (*plan)(const Upcoming&, const FusionMatch&);
};

struct Fusion {
  FusionMatch steps;
  PlanPtr plan;
};

// The steps and the plan of the first rule that matches and has a plan, in the order of the list in
// fusion.cpp. If there is none, `steps` is the first step and `plan` is null.
Fusion fusion_of(const Upcoming& next);

// ---- which steps next to each other a kernel can compute ----

// The function that the step computes of its operand if it does nothing else, else none.
inline Epilogue epilogue_of(const Step& step) {
  const Op* op = only_op_of(step);
  return op ? op->epilogue : Epilogue::none;
}

// Whether `next` computes an epilogue (Op::epilogue) of the whole result of the product before it, and
// nothing else.
bool is_epilogue_of(const Step& product, const Step& next);

// Whether `sum` computes left + right and nothing else, and the product after it adds that to its result.
bool is_sum_for(const Step& sum, const Step& product);

// Whether `norm` is the layer_norm or rms_norm of the left operand of the product after it.
bool is_norm_for(const Step& norm, const Step& product);

// An operand of such a sum, whose shape may have other leading axes than the product's: all numbers of the
// product's shape, or one row for all. Nothing for one that lies otherwise.
std::optional<Arg> in_shape_of(const Arg& a, const Arg& result);

// Whether `next` adds a tensor of the same shape to z_x of the layer_norm_backward or rms_norm_backward
// before it, and nothing else: the gradient that comes past the norm.
bool is_sum_of(const Step& gradient, const Step& next);

// A plan for the gradient's kernel that also computes that sum, with the bits that a step of its own would
// leave; it writes z_x only if other steps read it. Null if it does not compute it.
PlanPtr plan_with_sum(const Call& gradient, const Step& sum, bool writes_z_x);

// Whether `assign` writes rows of keys and values into the cache that the attention after it reads.
bool appends_cache_for(const Step& assign, const Step& attention);

// Sums of few terms each, such as that of a position's gradient over the rows of a small batch: a thread has
// some of the sums, and adds up their terms in order. The kernels for other sums divide each among threads.
// Whether a step is the sum, over some axes, of at most 32 terms each and 2²⁰ in all, of floating-point
// numbers.
bool is_sum_of_few(const Step& step);

// How many of the steps, from the first on, one kernel can compute: casts from f32 to one half type, in one
// piece each, none of which reads what one before it writes, or the other way round. 0 or 1: no list.
std::size_t casts_together(std::span<const Step> steps);

}  // namespace tg::cuda
