#include "core/compile/placed.h"

#include <utility>

namespace tg {

namespace {

// Chooses a different order of the steps if their arena is at most `more` bytes larger then.
void take_order(const Graph& graph, std::vector<LoweredStep>& steps, std::vector<LoweredStep> reordered,
                std::size_t more, const Scheduled& known, std::size_t status_bytes, Placed& p) {
  Placed then = placed(graph, reordered, known, status_bytes, true);
  if (then.plan.report.arena > p.plan.report.arena + more) return;
  steps = std::move(reordered);
  p = std::move(then);
}

}  // namespace

Placed placed(const Graph& graph, std::span<const LoweredStep> steps, const Scheduled& known,
              std::size_t status_bytes, bool reuse) {
  Placed p{buffers_of(graph, steps, known.joined, known.outputs, known.assign, known.directly), {}};
  if (reuse) share_in_place(graph, steps, known.joined, p.buffers);
  p.plan = plan_buffers(graph, p.buffers, status_bytes, reuse);
  return p;
}

void reorder(const Graph& graph, std::vector<LoweredStep>& steps, const Scheduled& known,
             const CompileOptions& options, std::size_t status_bytes, Placed& p) {
  known.scheduler.reorder(graph, steps, known.joined, options,
                          [&](std::vector<LoweredStep> reordered, std::size_t more) {
                            take_order(graph, steps, std::move(reordered), more, known, status_bytes, p);
                          });
}

}  // namespace tg
