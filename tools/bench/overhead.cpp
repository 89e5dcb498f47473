// The overhead besides arithmetic: dispatch of a step, recording, differentiating, compiling, planning.
#include <cmath>

#include <tilegrad/autograd/gradients.h>
#include <tilegrad/ops/ops.h>
#include <tilegrad/train/training.h>
#include "core/compile/memory_plan.h"
#include "tools/bench/modes.h"

namespace tg::bench {

namespace {

Row per_node(const std::string& name, const std::string& shape, int threads, double seconds, double nodes) {
  return {name, shape, "f32", "", threads, seconds * 1e3, seconds / nodes * 1e9, "ns/node"};
}

// A chain of additions on [32]: recording it, differentiating it, compiling it, and running it with a
// separate step for every node.
void chain(std::int64_t nodes, const Settings& settings, Report& report) {
  const double n = static_cast<double>(nodes);
  const std::string shape = std::to_string(nodes) + " of [32]";
  const auto record_chain = [&](Graph& g, Tensor& x) {
    x = g.input("x", {32});
    Tensor y = x;
    for (std::int64_t i = 0; i < nodes; ++i) y = y + x;
    return y;
  };
  if (report.selects("record chain"))
    report.add(per_node("record chain", shape, 1,
                        best_seconds(settings.seconds,
                                     [&] {
                                       Graph g;
                                       Tensor x;
                                       record_chain(g, x);
                                     }),
                        n));
  Graph g;
  Tensor x;
  const Tensor y = record_chain(g, x);
  if (report.selects("differentiate chain"))
    report.add(per_node("differentiate chain", shape, 1,
                        best_seconds(settings.seconds,
                                     [&] {
                                       Graph fresh;
                                       Tensor w;
                                       const Tensor loss = sum(record_chain(fresh, w));
                                       gradients(loss, {w});
                                     }),
                        n));
  const auto compile_chain = [&](bool fuse, int threads) {
    return compile(g, {y}, {.threads = threads, .fuse = fuse});
  };
  for (bool fuse : {false, true}) {
    const std::string name = std::string("compile chain") + (fuse ? ", fused" : "");
    if (report.selects(name))
      report.add(
          per_node(name, shape, 1, best_seconds(settings.seconds, [&] { compile_chain(fuse, 1); }), n));
  }
  if (!report.selects("dispatch")) return;
  for (int threads = 1; threads <= settings.threads; threads *= 2) {
    Program program = compile_chain(false, threads);
    program.feed({x, random_array({32}, f32)});
    report.add(per_node("dispatch", shape, threads, time_of_run(program, settings), n));
  }
}

// Buffers with lifetimes like those of a training step: some short, some from the forward to the backward
// pass.
void planner(std::int64_t buffers, const Settings& settings, Report& report) {
  if (!report.selects("plan memory")) return;
  std::vector<Lifetime> lives;
  const int last = static_cast<int>(buffers);
  for (int i = 0; i < last; ++i)
    lives.push_back(
        {static_cast<std::size_t>(256 + i * 7919 % 4096), i, i < last / 2 && i % 2 ? last - i : i + 2});
  report.add(per_node("plan memory", std::to_string(buffers) + " buffers", 1,
                      best_seconds(settings.seconds, [&] { plan_memory(lives); }),
                      static_cast<double>(buffers)));
}

// The work before the first step of a training run: recording the model, its gradients and AdamW, and
// compiling them. The number of nodes is GPT-2's; the parameters are small and already exist.
void training_step(const Settings& settings, Report& report) {
  if (!report.selects("GPT")) return;
  const nn::ModelConfig config{.vocabulary = 65, .context = 64, .layers = 12, .heads = 12, .width = 192};
  nn::Params params;
  const nn::Model model(params, config);
  const optim::AdamW optimizer(params.all());
  double record = Row::none, differentiate = Row::none, planned = Row::none;
  std::size_t nodes = 0, steps = 0;
  const double all = best_seconds(settings.seconds * 3, [&] {
    Graph g;
    const double start = now();
    const Tensor x = g.input("tokens", {1, config.context}, i32),
                 y = g.input("targets", {1, config.context}, i32);
    const Tensor loss = cross_entropy(model(x, {.mode = nn::Mode::train}), y);
    const double recorded = now();
    const optim::AdamW::Update update = optimizer.minimize(loss);
    const double differentiated = now();
    const Program program = compile(g, {loss}, {.assign = update.assign, .threads = settings.threads});
    const double compiled = now();
    record = std::fmin(record, recorded - start);
    differentiate = std::fmin(differentiate, differentiated - recorded);
    planned = std::fmin(planned, compiled - differentiated);
    nodes = g.nodes().size(), steps = program.steps().size();
  });
  const std::string shape = std::to_string(nodes) + " nodes, " + std::to_string(steps) + " steps";
  const double n = static_cast<double>(nodes);
  report.add(per_node("GPT 12 layers: record", shape, 1, record, n));
  report.add(per_node("GPT 12 layers: differentiate", shape, 1, differentiate, n));
  report.add(per_node("GPT 12 layers: compile", shape, 1, planned, n));
  report.add(per_node("GPT 12 layers: all", shape, 1, all, n));
}

}  // namespace

void run_overhead(const Settings& settings, const Machine&, Report& report) {
  const std::int64_t nodes = settings.shapes.empty() ? 10000 : settings.shapes[0][0];
  chain(nodes, settings, report);
  planner(nodes, settings, report);
  training_step(settings, report);
}

}  // namespace tg::bench
