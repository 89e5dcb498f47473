#include "core/compile/scheduler.h"

#include <tilegrad/core/run/backend.h>

namespace tg {

bool Scheduler::fuses(const LoweredStep& step, const LoweredStep& next) const {
  return step.op->assigns || (step.op == &fused_op && next.op->product) ||
         ((step.op->product || step.op->accepts_sum) && next.op == &fused_op);
}

bool Scheduler::joins_reduction(const Graph&, const LoweredStep*, const LoweredStep&, std::int64_t,
                                std::int64_t) const {
  return true;
}

std::optional<std::size_t> Scheduler::overlapped_step(std::span<const LoweredStep>, std::size_t,
                                                      std::size_t) const {
  return std::nullopt;
}

void Scheduler::order(const Graph&, std::vector<LoweredStep>&) const {}

void Scheduler::reorder(const Graph&, const std::vector<LoweredStep>&, const Joined&, const CompileOptions&,
                        const Propose&) const {}

const Scheduler& Backend::scheduler() const {
  static const Scheduler one_after_the_other;
  return one_after_the_other;
}

}  // namespace tg
