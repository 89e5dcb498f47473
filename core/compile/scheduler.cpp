#include "core/compile/scheduler.h"

#include <algorithm>

#include <tilegrad/core/run/backend.h>

namespace tg {

bool StepScheduler::joins_reduction(const Graph&, const LoweredStep*, const LoweredStep&, std::int64_t,
                                    std::int64_t) const {
  return true;
}

std::optional<std::size_t> StepScheduler::overlapped_step(std::span<const LoweredStep>, std::size_t,
                                                          std::size_t) const {
  return std::nullopt;
}

void StepScheduler::order(const Graph&, std::vector<LoweredStep>&) const {}

void StepScheduler::reorder(const Graph&, const std::vector<LoweredStep>&, const Joined&,
                            const CompileOptions&, const Propose&) const {}

const StepScheduler& Backend::scheduler() const {
  static const auto& one_after_the_other = *new StepScheduler;
  return one_after_the_other;
}

const LoweredStep* step_before(std::span<const LoweredStep> steps, std::size_t at) {
  while (at > 0 && !steps[at - 1].op) --at;
  return at > 0 ? &steps[at - 1] : nullptr;
}

bool reads_result(const Graph& graph, const LoweredStep& step, const LoweredStep& next) {
  return std::ranges::any_of(next.in, [&](ValueId v) {
    return std::ranges::find(step.out, graph.values()[v].root) != step.out.end();
  });
}

bool belong_together(const Graph& graph, const LoweredStep& step, const LoweredStep& next) {
  if (!reads_result(graph, step, next)) return false;
  return step.op->assigns || (step.op == &fused_op && next.op->product) ||
         ((step.op->product || step.op->accepts_sum) && next.op == &fused_op);
}

bool stay_together(const Graph& graph, const LoweredStep& step, const LoweredStep& next) {
  return step.with_next || belong_together(graph, step, next);
}

bool may_be_epilogue(const LoweredStep& step) {
  const Op* op = only_op_of(step);
  return op && op->unrounded_epilogue;
}

bool is_epilogue(const LoweredStep& product, const LoweredStep& next) {
  return product.op->product && may_be_epilogue(next);
}

bool is_rounding_epilogue(const Graph& graph, const LoweredStep& product, const LoweredStep& next) {
  if (!is_epilogue(product, next)) return false;
  const DType t = graph.values()[product.out[0]].dtype;
  return t == bf16 || t == f16;
}

}  // namespace tg
