#include "core/compile/neighbours.h"

#include <algorithm>

namespace tg {

bool belong_together(const Graph& graph, const LoweredStep& step, const LoweredStep& next) {
  const auto is_read = [&](ValueId v) {
    return std::ranges::find(step.out, graph.values()[v].root) != step.out.end();
  };
  if (std::ranges::none_of(next.in, is_read)) return false;
  const bool is_norm_gradient =
      step.op->name == "layer_norm_backward" || step.op->name == "rms_norm_backward";
  return step.op->name == "index_assign" || (step.op == &fused_op && next.op->name == "matmul") ||
         ((step.op->name == "matmul" || is_norm_gradient) && next.op == &fused_op);
}

bool is_gelu_tanh(const LoweredStep& step) {
  if (step.op != &fused_op) return false;
  const auto& code = step.attrs.as<FusedAttrs>().code;
  return code.size() == 1 && code[0].op->name == "gelu_tanh";
}

bool is_epilogue(const LoweredStep& product, const LoweredStep& next) {
  return product.op->name == "matmul" && is_gelu_tanh(next);
}

bool is_rounding_epilogue(const Graph& graph, const LoweredStep& product, const LoweredStep& next) {
  if (!is_epilogue(product, next)) return false;
  const DType t = graph.values()[product.out[0]].dtype;
  return t == bf16 || t == f16;
}

}  // namespace tg
