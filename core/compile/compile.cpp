// compile() as a list of passes, in the order of the picture in docs/architecture.md. Each is a function on
// data in a file of its own.
#include <tilegrad/core/compile/compile.h>

#include "core/base/alignment.h"
#include "core/compile/assignments.h"
#include "core/compile/bind.h"
#include "core/compile/buffers.h"
#include "core/compile/join.h"
#include "core/compile/memory_plan.h"
#include "core/compile/merge.h"
#include "core/run/program_state.h"

namespace tg {

namespace {

Device device_of(const Graph& graph, const CompileOptions& options) {
  if (options.device) return *options.device;
  if (!options.assign.empty() && options.assign[0].target.key()) return options.assign[0].target.device();
  for (const Node& n : graph.nodes())
    if (n.op == &parameter_op) return n.attrs.as<ParameterAttrs>().parameter.device();
  return Device::cpu();
}

// A program without its log. `log` may be null.
std::shared_ptr<Program::State> compiled(Graph& graph, const std::vector<Tensor>& fetch,
                                         const CompileOptions& options, bool reuse, bool poison,
                                         ProgramLog* log) {
  auto state = std::make_shared<Program::State>();
  state->graph = graph.share();
  state->device = device_of(graph, options);
  state->backend = &backend(state->device);
  if (reuse) state->arena = options.arena;  // a program to compare with has memory of its own
  state->prepared = {options.threads, options.tf32, options.verify, options.rows_alone};

  // Outputs → steps.
  const Outputs outputs = outputs_of(graph, fetch, options.assign);
  if (!options.allow_unassigned) require_updates(graph, outputs, options.assign);
  state->outputs = outputs.all();
  std::vector<LoweredStep> steps = lower(graph, state->outputs, options.fuse);
  const Joined joined = join_in_place(graph, steps, state->outputs);
  if (options.fuse) merge_fused(graph, steps, state->outputs);
  const std::vector<bool> directly = written_directly(graph, steps, outputs, options.assign);
  append_copies(graph, steps, outputs, options.assign, directly);

  // Steps → buffers → places.
  Buffers buffers = buffers_of(graph, steps, joined, outputs, options.assign, directly);
  if (reuse) share_in_place(graph, steps, joined, buffers);
  const MemoryPlan plan = plan_buffers(graph, buffers, state->backend->status_bytes(), reuse);
  state->memory = plan.report;
  state->buffers = arena_buffers(buffers, plan);
  state->parameters = parameters_of(buffers, steps, state->device);
  for (const Parameter& p : state->parameters)
    state->memory.parameters = add_bytes(state->memory.parameters, aligned_bytes(p.bytes()), "parameters");

  // Kernels and memory.
  state->steps = steps_of(graph, steps, joined, state->outputs);
  if (options.plan_only) {
    state->planned = state->backend->prepare(state->steps, state->prepared);
    state->memory.workspace = state->planned->workspace_bytes();
  } else {
    const Bindings passes{graph, steps, joined, buffers, plan};
    bind(*state, passes, poison);
    for (std::size_t i = 0; i < fetch.size(); ++i)
      state->fetched.emplace_back(fetch[i].id(), bound_arg(*state, passes, outputs.fetched[i]));
    for (const Assign& a : options.assign) state->assigned.push_back(a.target);
  }
  if (log)
    log->compiled(*state,
                  log->level() >= 3 ? planned_buffers(graph, buffers, plan) : std::vector<PlannedBuffer>());
  return state;
}

}  // namespace

Program compile(Graph& graph, const std::vector<Tensor>& fetch, const CompileOptions& options) {
  std::unique_ptr<ProgramLog> log = ProgramLog::begin();
  auto state = compiled(graph, fetch, options, options.reuse, options.verify, log.get());
  state->log = std::move(log);
  if (options.verify && !options.plan_only)
    state->twin = compiled(graph, fetch, options, false, true, nullptr);
  return Program(std::move(state));
}

std::vector<Array> eval(const std::vector<Tensor>& ts, const std::vector<Feed>& feeds,
                        const CompileOptions& options) {
  if (ts.empty()) return {};
  Graph& graph = ts[0].graph();
  Program program = compile(graph, ts, options);
  for (const Feed& f : feeds) {
    const bool is_input = graph.has(f.input()) && graph.node_of(f.input().id()).op == &input_op;
    if (!is_input || program.reads(f.input())) program.feed(f);  // what is no input is refused
  }
  program.run();
  std::vector<Array> out;
  for (const Tensor& t : ts) out.push_back(program.fetch(t));
  return out;
}

Array eval(const Tensor& t, const std::vector<Feed>& feeds, const CompileOptions& options) {
  return eval(std::vector<Tensor>{t}, feeds, options)[0];
}

}  // namespace tg
