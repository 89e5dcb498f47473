#include "backends/cuda/fusion/fusion.h"

namespace tg::cuda {

// Each is defined in the file of its kernels.
extern const FusionRule cast_list_rule, small_products_rule, small_steps_rule, sum_of_few_rule,
    added_rows_rule, ropes_before_attention_rule, two_ropes_rule, ropes_after_attention_rule,
    norm_backward_sum_rule, product_of_rows_rule, product_gelu_rule, turned_product_rule;

namespace {

// The first rule that matches and has a plan is used, so rules for many steps precede rules for few. A list
// of casts is faster than a kernel of small steps that contains them. A product in a list of small products
// is not fused with its neighbours, and its operands are not copied.
const FusionRule* const rules[] = {
    &cast_list_rule,               // casts to one 16-bit type
    &small_products_rule,          // independent products of few tiles
    &small_steps_rule,             // chains and sums of few numbers
    &sum_of_few_rule,              // a sum of few terms
    &added_rows_rule,              // rows added to a cache, and its attention
    &ropes_before_attention_rule,  // ropes of queries and keys, and their attention
    &two_ropes_rule,               // two ropes
    &ropes_after_attention_rule,   // the gradient of attention, and ropes of its results
    &norm_backward_sum_rule,       // the gradient of a norm, and a sum with it
    &product_of_rows_rule,         // a sum or norm, a product of rows, and gelu of it
    &product_gelu_rule,            // a product by cuBLASLt, and gelu of it
    &turned_product_rule,          // a copy of an operand, and a product
};

}  // namespace

Fusion fusion_of(const Upcoming& next) {
  for (const FusionRule* rule : rules)
    if (const FusionMatch match = rule->match(next); match.count > 0)
      if (PlanPtr plan = rule->plan(next, match)) return {match, std::move(plan)};
  return {{1, 0}, nullptr};
}

}  // namespace tg::cuda
