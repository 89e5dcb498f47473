#include "core/compile/memory_plan.h"

#include <algorithm>

#include "core/base/alignment.h"

namespace tg {

namespace {

// The leaf's name or the op that computes it, with dtype and shape.
std::string value_label(const Graph& graph, ValueId v) {
  const Node& maker = graph.node_of(v);
  std::string name = graph.label_of(maker);
  if (maker.op == &input_op) name = maker.attrs.as<InputAttrs>().name;
  if (maker.op == &parameter_op) name = maker.attrs.as<ParameterAttrs>().parameter.name();
  return name + " " + std::string(name_of(graph.values()[v].dtype)) + graph.values()[v].layout.shape.text();
}

void plan_arena(const Buffers& buffers, bool reuse, MemoryPlan& plan) {
  const std::vector<Buffer>& list = buffers.list;
  for (int i = 0; i < static_cast<int>(list.size()); ++i)
    if (list[i].kind == Buffer::arena && list[i].bytes > 0) plan.arena_order.push_back(i);
  std::stable_sort(plan.arena_order.begin(), plan.arena_order.end(),
                   [&](int a, int b) { return list[a].first < list[b].first; });
  std::vector<Lifetime> lives;
  for (int i : plan.arena_order) lives.push_back({list[i].bytes, list[i].first, list[i].last});
  const Placement placement = plan_memory(lives, reuse);
  for (std::size_t i = 0; i < lives.size(); ++i) plan.offset[plan.arena_order[i]] = placement.offset[i];
  plan.report.arena = placement.peak;
  plan.report.alive = placement.alive;
}

void plan_leaves(const Graph& graph, const Buffers& buffers, std::size_t status_bytes, MemoryPlan& plan) {
  std::size_t end = 0;
  const auto append = [&](int buffer, std::size_t& total) {
    const std::size_t bytes = aligned_bytes(buffers.list[buffer].bytes);
    plan.offset[buffer] = end;
    end = add_bytes(end, bytes, "inputs, results and constants");
    total += bytes;
  };
  for (const bool rng : {false, true})
    for (ValueId v = 0; v < buffers.of.size(); ++v) {
      const int b = buffers.of[v];
      if (b >= 0 && buffers.list[b].kind == Buffer::input && (graph.node_of(v).op == &rng_op) == rng)
        append(b, plan.report.inputs);
    }
  plan.results_offset = end;
  plan.report.results = status_bytes;
  end += status_bytes;
  for (int b = 0; b < static_cast<int>(buffers.list.size()); ++b)
    if (buffers.list[b].kind == Buffer::result) append(b, plan.report.results);
  for (int b = 0; b < static_cast<int>(buffers.list.size()); ++b)
    if (buffers.list[b].kind == Buffer::constant) append(b, plan.report.constants);
}

}  // namespace

MemoryPlan plan_buffers(const Graph& graph, const Buffers& buffers, std::size_t status_bytes, bool reuse) {
  MemoryPlan plan;
  plan.offset.assign(buffers.list.size(), 0);
  plan_arena(buffers, reuse, plan);
  plan_leaves(graph, buffers, status_bytes, plan);
  return plan;
}

std::vector<ArenaBuffer> arena_buffers(const Buffers& buffers, const MemoryPlan& plan) {
  std::vector<ArenaBuffer> all;
  for (int i : plan.arena_order) {
    const Buffer& b = buffers.list[i];
    all.push_back({plan.offset[i], aligned_bytes(b.bytes), b.first, b.last});
  }
  return all;
}

std::vector<PlannedBuffer> planned_buffers(const Graph& graph, const Buffers& buffers,
                                           const MemoryPlan& plan) {
  constexpr const char* names[] = {"arena", "result", "input", "constant", "parameter"};
  std::vector<PlannedBuffer> all;
  for (std::size_t i = 0; i < buffers.list.size(); ++i) {
    const Buffer& b = buffers.list[i];
    all.push_back({names[b.kind], "", b.bytes, plan.offset[i], b.first, b.last});
  }
  std::vector<int> held(all.size());
  for (ValueId v = 0; v < buffers.of.size(); ++v) {
    if (buffers.of[v] < 0 || graph.values()[v].root != v) continue;
    const auto b = static_cast<std::size_t>(buffers.of[v]);
    if (held[b]++ == 0) all[b].holds = value_label(graph, v);
  }
  for (std::size_t b = 0; b < all.size(); ++b)
    if (held[b] > 1) all[b].holds += " and " + std::to_string(held[b] - 1) + " more";
  std::erase_if(all, [](const PlannedBuffer& b) { return b.bytes == 0; });
  std::stable_sort(all.begin(), all.end(), [](const PlannedBuffer& a, const PlannedBuffer& b) {
    const bool in_arena = a.kind == "arena";
    return in_arena != (b.kind == "arena") ? in_arena : in_arena && a.first < b.first;
  });
  return all;
}

}  // namespace tg
