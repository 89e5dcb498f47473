#include "backends/cuda/fusion/fusion.h"

#include <tilegrad/ops/paged_attn.h>
#include "ops/norm.h"

namespace tg::cuda {

// Each rule is defined in the file of its kernels.
extern const FusionRule cast_list_rule, grouped_gemm_rule, horizontal_fusion_rule, sum_of_few_rule,
    added_rows_rule, ropes_before_attention_rule, two_rope_steps_rule, ropes_after_attention_rule,
    norm_backward_sum_rule, gemm_of_rows_rule, product_gelu_rule, transposed_gemm_rule;

namespace {

// The first rule that matches and has a plan is used. Rules for many steps therefore precede rules for few. A
// list of casts is faster than a horizontally fused kernel that contains them. A GEMM in a list of small
// GEMMs is not fused with adjacent steps, and its operands are not copied.
const FusionRule* const rules[] = {
    &cast_list_rule,               // casts to one 16-bit type
    &grouped_gemm_rule,            // independent GEMMs with few tiles
    &horizontal_fusion_rule,       // elementwise steps and sums of few elements
    &sum_of_few_rule,              // a sum of few terms
    &added_rows_rule,              // rows appended to a cache, and its attention
    &ropes_before_attention_rule,  // RoPE of queries and keys, and their attention
    &two_rope_steps_rule,          // two RoPE steps
    &ropes_after_attention_rule,   // the gradient of attention, and RoPE of its results
    &norm_backward_sum_rule,       // the gradient of a norm, and a sum of it and a tensor
    &gemm_of_rows_rule,            // a sum or norm, a GEMM of few rows, and its gelu
    &product_gelu_rule,            // a cuBLASLt GEMM and its gelu
    &transposed_gemm_rule,         // a copy of an operand and a GEMM
};

// Whether both consist of the same elements in the same order.
bool is_all_of(const Arg& read, const Arg& made) {
  return read.data == made.data && read.dtype == made.dtype && read.layout.is_contiguous() &&
         made.layout.is_contiguous() && read.layout.numel() == made.layout.numel();
}

}  // namespace

Fusion fusion_of(const Upcoming& next) {
  for (const FusionRule* rule : rules)
    if (const FusionMatch match = rule->match(next); match.count > 0)
      if (PlanPtr plan = rule->plan(next, match)) return {match, std::move(plan)};
  return {{1, 0}, nullptr};
}

bool is_epilogue_of(const Step& product, const Step& next) {
  if (!product.op->product || epilogue_of(next) == Epilogue::none) return false;
  return is_all_of(next.in[0], product.out[0]) && next.out[0].dtype == product.out[0].dtype &&
         next.out[0].layout.is_contiguous();
}

bool is_sum_for(const Step& sum, const Step& product) {
  const Op* op = only_op_of(sum);
  return product.op->product && product.in.size() == 3 && op && op->adds == 1 &&
         is_all_of(product.in[2], sum.out[0]) && product.in[2].layout.shape == product.out[0].layout.shape &&
         in_shape_of(sum.in[0], product.out[0]) && in_shape_of(sum.in[1], product.out[0]);
}

bool is_sum_of(const Step& gradient, const Step& next) {
  const Op* op = only_op_of(next);
  if (!gradient.op->accepts_sum || !op || op->adds != 1) return false;
  const auto is_like = [&](const Arg& a) {
    return a.dtype == gradient.out[0].dtype && a.layout.is_contiguous() &&
           a.layout.numel() == gradient.out[0].layout.numel();
  };
  return is_like(next.in[0]) && is_like(next.in[1]) && is_like(next.out[0]) &&
         is_all_of(next.in[0], gradient.out[0]) != is_all_of(next.in[1], gradient.out[0]);
}

bool is_norm_for(const Step& norm, const Step& product) {
  return product.op->product && norm_of(*norm.op, norm.attrs) && is_all_of(product.in[0], norm.out[0]) &&
         norm.in[0].layout.shape.back() == product.in[0].layout.shape.back();
}

bool appends_cache_for(const Step& assign, const Step& attention) {
  const bool is_forward =
      attention_of(*attention.op, attention.attrs) || paged_attention_of(*attention.op, attention.attrs);
  return assign.op->assigns && assign.out.size() == 2 && is_forward &&
         attention.in[1].data == assign.out[0].data && attention.in[2].data == assign.out[1].data;
}

std::optional<Arg> in_shape_of(const Arg& a, const Arg& result) {
  const Shape& shape = a.layout.shape;
  if (a.dtype != result.dtype || a.layout.rank() == 0) return std::nullopt;
  if (a.layout.is_contiguous() && a.layout.numel() == result.layout.numel())
    return Arg{a.dtype, row_major(result.layout.shape), a.data};
  const int last = a.layout.rank() - 1;
  bool is_row =
      shape[last] == result.layout.shape.back() && (a.layout.strides[last] == 1 || shape[last] == 1);
  for (int axis = 0; axis < last; ++axis)
    is_row = is_row && (a.layout.strides[axis] == 0 || shape[axis] == 1);
  if (!is_row) return std::nullopt;
  return Arg{a.dtype, row_major({shape[last]}), a.data};
}

}  // namespace tg::cuda
