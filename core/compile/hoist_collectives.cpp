#include "core/compile/passes.h"

#include <algorithm>
#include <unordered_map>

#include "core/compile/scheduler.h"

namespace tg {

void hoist_collectives(const Graph& graph, std::vector<LoweredStep>& steps, const StepScheduler& scheduler) {
  std::unordered_map<ValueId, std::size_t> maker;  // of each root, the step
  for (std::size_t s = 0; s < steps.size(); ++s) {
    for (ValueId v : steps[s].out) maker[v] = s;
    if (!steps[s].op->early) continue;
    std::size_t to = 0;
    for (ValueId v : steps[s].in)
      if (const auto made = maker.find(graph.values()[v].root); made != maker.end())
        to = std::max(to, made->second + 1);
    if (const auto overlapped = scheduler.overlapped_step(steps, to, s)) {
      to = *overlapped;
      steps[s].with_next = true;  // so that nothing takes the place of what it reads
    }
    while (to > 0 && to < s && belong_together(graph, steps[to - 1], steps[to])) ++to;
    const auto begin = steps.begin();
    std::rotate(begin + static_cast<std::ptrdiff_t>(to), begin + static_cast<std::ptrdiff_t>(s),
                begin + static_cast<std::ptrdiff_t>(s + 1));
    for (std::size_t moved = to; moved <= s; ++moved)
      for (ValueId v : steps[moved].out) maker[v] = moved;
  }
}

}  // namespace tg
