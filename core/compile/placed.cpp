#include "core/compile/placed.h"

#include "core/compile/casts_first.h"
#include "core/compile/products_last.h"

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

void put_casts_first(const Graph& graph, std::vector<LoweredStep>& steps, const Scheduled& known,
                     std::size_t status_bytes, Placed& p) {
  constexpr std::size_t most = std::size_t{32} << 20;
  std::vector<LoweredStep> reordered = steps;
  if (casts_first(graph, reordered, most))
    take_order(graph, steps, std::move(reordered), 0, known, status_bytes, p);
}

void put_products_last(const Graph& graph, std::vector<LoweredStep>& steps, const Scheduled& known,
                       std::size_t status_bytes, Placed& p) {
  constexpr std::size_t little = std::size_t{8} << 20;
  std::vector<LoweredStep> reordered = steps;
  if (products_last(graph, reordered, known.joined))
    take_order(graph, steps, std::move(reordered), little, known, status_bytes, p);
}

}  // namespace tg
