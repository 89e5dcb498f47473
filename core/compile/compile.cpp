// compile(): runs the passes from a graph to steps (passes.cpp), enforces a memory budget, then selects
// kernels and allocates memory.
#include <tilegrad/core/compile/compile.h>

#include <algorithm>

#include "core/base/alignment.h"
#include "core/compile/assignments.h"
#include "core/compile/bind.h"
#include "core/compile/budget.h"
#include "core/compile/passes.h"
#include "core/run/arena_use.h"
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

// Copies the memory report and buffers of a placement to the state. The workspace of the kernels is added
// later.
void report(const Placed& p, std::span<const LoweredStep> steps, const std::vector<Assign>& assign,
            Program::State& state) {
  state.memory = p.plan.report;
  state.parameters = parameters_of(p.buffers, steps, state.device);
  check_parts(state.parameters, assign);
  for (const Parameter& parameter : state.parameters)
    state.memory.parameters =
        add_bytes(state.memory.parameters, aligned_bytes(parameter.bytes()), "parameters");
}

// If the program needs more than the budget, reorders the steps and adds recomputation. Throws OutOfMemory if
// that does not suffice.
Recomputed fit_in_budget(const CompileOptions& options, Graph& graph, std::vector<LoweredStep>& steps,
                         const Scheduled& known, const Program::State& state) {
  const std::size_t budget = options.memory_budget, held = options.memory_held;
  MemoryReport m = state.memory;
  m.workspace = state.backend->prepare(steps_of(graph, steps, known.joined, state.outputs), state.prepared)
                    ->workspace_bytes();
  if (state.arena) m.workspace = std::max(m.workspace, ArenaUse(*state.arena).least_scratch());
  const std::size_t others = add_bytes(m.peak() - m.arena, held, "the program");
  const std::size_t least_arena = state.arena ? ArenaUse(*state.arena).least_results() : 0;
  const auto needed = [&](std::size_t arena) {
    return add_bytes(std::max(arena, least_arena), others, "the program");
  };
  if (needed(m.arena) <= budget) return {.before = m.arena, .arena = m.arena};
  order_for_memory(graph, steps, known);
  Recomputed r = recompute_within(budget > others ? budget - others : 0, graph, steps, known);
  r.before = m.arena;
  if (const std::size_t least = needed(r.arena); least > budget)
    throw BudgetTooSmall(
        "[compile] the program needs at least " + bytes_text(least) + ", " + bytes_text(least - others) +
            " of them for intermediate results, with GEMMs and attention recomputed too, and " +
            bytes_text(others) + " for parameters, inputs and the kernels' workspace" +
            (held > 0 ? ", and outside of the program" : "") + "; memory_budget is " + bytes_text(budget),
        least);
  return r;
}

// Compiles a program without its log; `log` may be null.
std::shared_ptr<Program::State> compiled(Graph& graph, const std::vector<Tensor>& fetch,
                                         const CompileOptions& options, bool reuse, bool poison,
                                         ProgramLog* log) {
  auto state = std::make_shared<Program::State>();
  state->graph = graph.share();
  state->device = device_of(graph, options);
  state->backend = &backend(state->device);
  if (reuse) state->arena = options.arena;  // a program for comparison has separate memory
  state->prepared = {options.threads, options.tf32, options.verify, options.batch_invariant, options.ranks};

  const std::size_t status_bytes = state->backend->status_bytes();
  Passes passed = run_passes(graph, fetch, options, reuse, state->backend->scheduler(), status_bytes);
  std::vector<LoweredStep>& steps = passed.steps;
  Placed& p = passed.placed;
  state->outputs = passed.outputs.all();
  report(p, steps, options.assign, *state);
  if (reuse && options.memory_budget > 0) {
    const Scheduled known = passed.known(options.assign);
    const Recomputed r = fit_in_budget(options, graph, steps, known, *state);
    if (r.arena < r.before) {
      p = placed(graph, steps, known, status_bytes, reuse);
      report(p, steps, options.assign, *state);
    }
    state->memory.recomputed = r.again;
    state->memory.recomputed.saved = r.before - r.arena;
  }
  const auto& [buffers, plan] = p;
  state->buffers = arena_buffers(buffers, plan);

  // Select kernels and allocate memory.
  state->steps = steps_of(graph, steps, passed.joined, state->outputs);
  check_ranks(state->steps, options.ranks.get(), options.plan_only);
  if (options.plan_only) {
    state->planned = state->backend->prepare(state->steps, state->prepared);
    state->memory.workspace = state->planned->workspace_bytes();
  } else {
    const Bindings bindings{graph, steps, passed.joined, buffers, plan};
    bind(*state, bindings, poison);
    for (std::size_t i = 0; i < fetch.size(); ++i)
      state->fetched.emplace_back(fetch[i].id(), bound_arg(*state, bindings, passed.outputs.fetched[i]));
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
    if (!is_input || program.reads(f.input())) program.feed(f);  // a tensor that is not an input is rejected
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
