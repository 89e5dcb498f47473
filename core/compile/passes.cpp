// The list of passes, in the order of the drawing in docs/architecture.md. The shortest passes are also
// defined here.
#include "core/compile/passes.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/compile/fused_reductions.h"

namespace tg {

namespace {

// Applies the order `reordered` unless the arena would need more than `more` additional bytes.
void take_order(const Graph& graph, std::vector<LoweredStep>& steps, std::vector<LoweredStep> reordered,
                std::size_t more, const Scheduled& known, std::size_t status_bytes, Placed& p) {
  Placed then = placed(graph, reordered, known, status_bytes, true);
  if (then.plan.report.arena > p.plan.report.arena + more) return;
  steps = std::move(reordered);
  p = std::move(then);
}

}  // namespace

void hoist_collectives(const Graph& graph, std::vector<LoweredStep>& steps, const StepScheduler& scheduler) {
  std::unordered_map<ValueId, std::size_t> maker;  // key: root; value: step
  for (std::size_t s = 0; s < steps.size(); ++s) {
    for (ValueId v : steps[s].out) maker[v] = s;
    if (!steps[s].op->early) continue;
    std::size_t to = 0;
    for (ValueId v : steps[s].in)
      if (const auto made = maker.find(graph.values()[v].root); made != maker.end())
        to = std::max(to, made->second + 1);
    if (const auto overlapped = scheduler.overlapped_step(steps, to, s)) {
      to = *overlapped;
      steps[s].with_next = true;  // so that nothing reuses the memory of its inputs
    }
    while (to > 0 && to < s && belong_together(graph, steps[to - 1], steps[to])) ++to;
    const auto begin = steps.begin();
    std::rotate(begin + static_cast<std::ptrdiff_t>(to), begin + static_cast<std::ptrdiff_t>(s),
                begin + static_cast<std::ptrdiff_t>(s + 1));
    for (std::size_t moved = to; moved <= s; ++moved)
      for (ValueId v : steps[moved].out) maker[v] = moved;
  }
}

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

Passes run_passes(Graph& graph, const std::vector<Tensor>& fetch, const CompileOptions& options, bool reuse,
                  const StepScheduler& scheduler, std::size_t status_bytes) {
  Passes p{.outputs = outputs_of(graph, fetch, options.assign), .scheduler = &scheduler};

  // Outputs → steps.
  if (!options.allow_unassigned) require_updates(graph, p.outputs, options.assign);
  const std::vector<ValueId> outputs = p.outputs.all();
  p.steps = lower(graph, outputs, options.fuse);
  p.joined = join_in_place(graph, p.steps, outputs);
  if (options.fuse && !options.batch_invariant) add_in_products(graph, p.steps, p.joined, p.outputs);
  if (options.fuse) merge_fused(graph, p.steps, outputs);
  if (options.fuse && !options.batch_invariant) reduce_fused(graph, p.steps, outputs, scheduler);
  if (options.fuse) scheduler.order(graph, p.steps);
  if (options.ranks) hoist_collectives(graph, p.steps, scheduler);
  p.directly = written_directly(graph, p.steps, p.outputs, options.assign);
  append_copies(graph, p.steps, p.outputs, options.assign, p.directly);

  // Steps → buffers → offsets.
  const Scheduled known = p.known(options.assign);
  p.placed = placed(graph, p.steps, known, status_bytes, reuse);
  if (reuse && options.fuse) reorder(graph, p.steps, known, options, status_bytes, p.placed);
  return p;
}

}  // namespace tg
