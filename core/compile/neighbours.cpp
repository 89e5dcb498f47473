#include "core/compile/neighbours.h"

#include <algorithm>

namespace tg {

namespace {

bool is_norm_gradient(const LoweredStep& step) {
  return step.op->name == "layer_norm_backward" || step.op->name == "rms_norm_backward";
}

// The op of a chain of one; null for other steps.
const Op* only_op_of(const LoweredStep& step) {
  if (step.op != &fused_op) return nullptr;
  const auto& code = step.attrs.as<FusedAttrs>().code;
  return code.size() == 1 ? code[0].op : nullptr;
}

}  // namespace

const LoweredStep* step_before(std::span<const LoweredStep> steps, std::size_t at) {
  while (at > 0 && !steps[at - 1].op) --at;
  return at > 0 ? &steps[at - 1] : nullptr;
}

bool belong_together(const Graph& graph, const LoweredStep& step, const LoweredStep& next) {
  const auto is_read = [&](ValueId v) {
    return std::ranges::find(step.out, graph.values()[v].root) != step.out.end();
  };
  if (std::ranges::none_of(next.in, is_read)) return false;
  return step.op->name == "index_assign" || (step.op == &fused_op && next.op->product) ||
         ((step.op->product || is_norm_gradient(step)) && next.op == &fused_op);
}

bool stay_together(const Graph& graph, const LoweredStep& step, const LoweredStep& next) {
  return step.with_next || belong_together(graph, step, next);
}

bool is_gelu_tanh(const LoweredStep& step) {
  const Op* op = only_op_of(step);
  return op && op->name == "gelu_tanh";
}

bool is_epilogue(const LoweredStep& product, const LoweredStep& next) {
  return product.op->product && is_gelu_tanh(next);
}

bool is_sum_behind_norm(const Graph& graph, const LoweredStep& gradient, const LoweredStep& next) {
  const Op* op = only_op_of(next);
  return is_norm_gradient(gradient) && op && op->name == "add" &&
         std::ranges::any_of(next.in, [&](ValueId v) { return graph.values()[v].root == gradient.out[0]; });
}

bool is_rounding_epilogue(const Graph& graph, const LoweredStep& product, const LoweredStep& next) {
  if (!is_epilogue(product, next)) return false;
  const DType t = graph.values()[product.out[0]].dtype;
  return t == bf16 || t == f16;
}

}  // namespace tg
