// Steps next to another that its kernel can compute as well. Of a product: what is computed from the result
// before it is written, and the sum of two operands that is added to it or the norm of its left one. Of
// attention: the rows that the step before adds to its cache. Of a norm's gradient: its sum with another.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "backends/cuda/kernel.h"
#include "backends/cuda/written_memory.h"
#include "core/compile/lower.h"

namespace tg::cuda {

// Whether a number may be overwritten before it is read, where a thread reads number i of one operand and
// then writes number i of the other.
bool crosses(const Arg& read, const Arg& written);

// The function that the step computes of its operand if it does nothing else, else none.
inline Epilogue epilogue_of(const Step& step) {
  const Op* op = only_op_of(step);
  return op ? op->epilogue : Epilogue::none;
}

// Whether one of `others` shares memory with `a`.
bool meets(const Arg& a, std::span<const Arg> others);

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
bool is_added_for(const Step& assign, const Step& attention);

}  // namespace tg::cuda
