#include "core/compile/bind.h"

#include "core/compile/fused_reductions.h"
#include "core/run/arena_use.h"

namespace tg {

namespace {

Layout layout_within_buffer(const Graph& graph, const Joined& joined, ValueId v) {
  const auto found = joined.find(v);
  return found == joined.end() ? graph.values()[v].layout : found->second.layout;
}

// Converts a copy step of the compiler to a fused step, because elementwise kernels expect fused steps.
void make_fused(Step& step) {
  const DType t = step.out[0].dtype;
  step.op = &fused_op;
  step.attrs = FusedAttrs{compute_type(t), {{&copy_op, t, 1, {{FusedAttrs::Source::input, 0}}}}, {}};
}

void allocate(Program::State& state, const MemoryPlan& plan) {
  const std::size_t arena = plan.report.arena, leaves = plan.leaf_bytes();
  const std::size_t needed = (state.arena ? ArenaUse(*state.arena).missing(arena) : arena) + leaves;
  const std::size_t free = needed > Backend::worth_asking ? state.backend->available_bytes() : needed;
  if (needed > free)
    throw OutOfMemory("[compile] the program needs " + std::to_string(arena >> 20) +
                      " MiB for intermediate results and " + std::to_string(leaves >> 20) +
                      " MiB for inputs and constants; " + std::to_string(free >> 20) + " MiB are free");
  constexpr const char* what = "the program's intermediate results";
  state.block = state.arena ? ArenaUse(*state.arena).results(*state.backend, state.device, arena, what)
                            : state.backend->allocate(arena, what);
  state.leaf_block = state.backend->allocate(leaves, "the program's inputs and constants");
}

std::byte* memory_of(const Program::State& state, const Bindings& passes, int buffer) {
  const Buffer& b = passes.buffers.list[buffer];
  if (b.kind == Buffer::parameter) return b.owner.memory();
  return (b.kind == Buffer::arena ? state.block : state.leaf_block).get() + passes.plan.offset[buffer];
}

void bind_leaves(Program::State& state, const Bindings& passes) {
  for (ValueId v = 0; v < passes.buffers.of.size(); ++v) {
    const int buffer = passes.buffers.of[v];
    const Node& maker = passes.graph.node_of(v);
    if (buffer < 0 || !maker.op->leaf) continue;
    std::byte* memory = memory_of(state, passes, buffer);
    if (maker.op == &constant_op) {
      const Array& value = maker.attrs.as<ConstantAttrs>().value;
      state.backend->write(memory, value.raw(), passes.buffers.list[buffer].bytes);
    } else if (maker.op == &input_op) {
      const bool empty = numel(maker.attrs.as<InputAttrs>().shape) == 0;
      state.inputs.push_back({v, bound_arg(state, passes, v), empty});
    } else if (maker.op == &rng_op) {
      state.rng = memory;
    }
  }
}

void bind_steps(Program::State& state, const Bindings& passes) {
  for (std::size_t s = 0; s < passes.steps.size(); ++s) {
    const LoweredStep& from = passes.steps[s];
    Step& step = state.steps[s];
    for (std::size_t i = 0; i < from.in.size(); ++i)
      step.in[i].data = bound_arg(state, passes, from.in[i]).data;
    for (std::size_t i = 0; i < from.out.size(); ++i)
      step.out[i].data = bound_arg(state, passes, from.out[i]).data;
  }
}

// Adds steps that fill memory with NaN patterns, for CompileOptions::verify. The first added step fills the
// whole arena and the results, except for the `status_bytes` of the executable. Each buffer is filled again
// after the last step that uses it.
std::vector<Step> poisoned(std::vector<Step> steps, std::byte* arena, std::byte* results,
                           std::size_t status_bytes, const Buffers& buffers, const MemoryPlan& plan) {
  std::vector<Step> all;
  const auto fill = [&](std::byte* memory, std::size_t bytes) {
    const Shape shape{static_cast<std::int64_t>(bytes)};
    all.push_back({&full_op, FullAttrs{shape, 255, u8}, {}, {{u8, row_major(shape), memory}}, "poison", {}});
  };
  fill(arena, plan.report.arena);
  fill(results + status_bytes, plan.report.results - status_bytes);
  std::vector<std::vector<int>> dying(steps.size() + 1);  // key: last step; value: buffers
  for (int b : plan.arena_order) dying[buffers.list[b].last].push_back(b);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    all.push_back(std::move(steps[s]));
    for (int b : dying[s]) fill(arena + plan.offset[b], buffers.list[b].bytes);
  }
  return all;
}

}  // namespace

std::vector<Step> steps_of(const Graph& graph, std::span<const LoweredStep> steps, const Joined& joined,
                           std::span<const ValueId> outputs) {
  // One count per root value, so values that share memory share a count.
  std::vector<int> reads(graph.values().size());
  const auto count = [&](ValueId v) -> int& {
    v = graph.values()[v].root;
    for (auto at = joined.find(v); at != joined.end(); at = joined.find(v))
      v = graph.values()[at->second.whole].root;
    return reads[v];
  };
  for (const LoweredStep& l : steps)
    for (ValueId v : l.in) ++count(v);
  for (ValueId v : outputs) ++count(v);
  const auto arg = [&](ValueId v) {
    return Arg{graph.values()[v].dtype, layout_within_buffer(graph, joined, v), nullptr};
  };
  std::vector<Step> all;
  for (const LoweredStep& l : steps) {
    const Node& node = graph.nodes()[l.node];
    Step step{l.op, l.attrs, {}, {}, graph.name_of(node), node.where};
    step.name +=
        (step.name.empty() ? "" : "/") + (fused_text_of(*l.op, l.attrs) ? node.op->name : l.op->name);
    step.in.reserve(l.in.size());
    step.out.reserve(l.target ? 1 : l.out.size());
    for (ValueId v : l.in) step.in.push_back(arg(v));
    for (ValueId v : l.out) step.out.push_back(arg(v)), step.reads.push_back(count(v));
    if (l.target) {
      step.reads.push_back(1);
      step.out.push_back({l.target->dtype(), row_major(l.target->shape()), l.target->memory()});
      make_fused(step);
    }
    all.push_back(std::move(step));
  }
  return all;
}

Layout Bindings::layout_of(ValueId v) const {
  return layout_within_buffer(graph, joined, v);
}

Arg bound_arg(const Program::State& state, const Bindings& passes, ValueId v) {
  const Value& value = passes.graph.values()[v];
  Arg a{value.dtype, passes.layout_of(v)};
  a.data = memory_of(state, passes, passes.buffers.of[value.root]) +
           a.layout.offset * static_cast<std::int64_t>(size_of(a.dtype));
  return a;
}

void bind(Program::State& state, const Bindings& passes, bool poison) {
  allocate(state, passes.plan);
  bind_leaves(state, passes);
  bind_steps(state, passes);
  ProgramMemory memory{nullptr, state.leaf_block.get() + passes.plan.results_offset,
                       passes.plan.report.results};
  if (poison)
    state.steps = poisoned(std::move(state.steps), state.block.get(), memory.results,
                           state.backend->status_bytes(), passes.buffers, passes.plan);
  state.executable = state.backend->prepare(state.steps, state.prepared);
  state.memory.workspace = state.executable->workspace_bytes();
  constexpr const char* what = "the kernels' workspace";
  const std::size_t bytes = state.memory.workspace;
  state.workspace = state.arena ? ArenaUse(*state.arena).scratch(*state.backend, state.device, bytes, what)
                                : state.backend->allocate(bytes, what);
  memory.workspace = state.workspace.get();
  state.executable->bind(state.steps, memory);
}

}  // namespace tg
