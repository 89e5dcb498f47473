// Measures overhead other than arithmetic: dispatching a step, recording, differentiating, compiling,
// planning.
#include <cmath>

#include <tilegrad/autograd/gradients.h>
#include <tilegrad/ops/ops.h>
#include <tilegrad/train/training.h>
#include "core/compile/memory_plan.h"
#include "tools/bench/measure.h"
#include "tools/bench/report.h"

namespace tg::bench {

namespace {

void add_row(Report& report, const std::string& name, const std::string& shape, int threads, double seconds,
             std::int64_t nodes) {
  Row row{name, shape, "f32", "", threads};
  report.add(row.time(seconds).at(seconds / static_cast<double>(nodes) * 1e9, "ns/node"));
}

// Times f, which runs on one thread, if the row is selected.
template <class F>
void measure(Report& report, const std::string& name, const std::string& shape, std::int64_t nodes, F&& f) {
  if (report.selects(name)) add_row(report, name, shape, 1, best_seconds(report.settings.seconds, f), nodes);
}

// Records, differentiates and compiles a sequence of additions on [32], and runs it with a separate step for
// every node.
void chain(std::int64_t nodes, Report& report) {
  const Settings& settings = report.settings;
  const std::string shape = std::to_string(nodes) + " of [32]";
  const auto record_fused_step = [&](Graph& g, Tensor& x) {
    x = g.input("x", {32});
    Tensor y = x;
    for (std::int64_t i = 0; i < nodes; ++i) y = y + x;
    return y;
  };
  measure(report, "record chain", shape, nodes, [&] {
    Graph fresh;
    Tensor w;
    record_fused_step(fresh, w);
  });
  Graph g;
  Tensor x;
  const Tensor y = record_fused_step(g, x);
  measure(report, "differentiate chain", shape, nodes, [&] {
    Graph fresh;
    Tensor w;
    const Tensor loss = sum(record_fused_step(fresh, w));
    gradients(loss, {w});
  });
  const auto compile_fused = [&](bool fuse, int threads) {
    return compile(g, {y}, {.threads = threads, .fuse = fuse});
  };
  for (bool fuse : {false, true})
    measure(report, std::string("compile chain") + (fuse ? ", fused" : ""), shape, nodes,
            [&] { compile_fused(fuse, 1); });
  if (!report.selects("dispatch")) return;
  for (int threads = 1; threads <= settings.threads; threads *= 2) {
    Program program = compile_fused(false, threads);
    program.feed({x, random_array({32}, f32)});
    add_row(report, "dispatch", shape, threads, time_of_run(program, settings), nodes);
  }
}

// Plans memory for buffers with lifetimes as in a training step: some are short, others extend from the
// forward to the backward pass.
void planner(std::int64_t buffers, Report& report) {
  std::vector<Lifetime> lives;
  const int last = static_cast<int>(buffers);
  for (int i = 0; i < last; ++i)
    lives.push_back(
        {static_cast<std::size_t>(256 + i * 7919 % 4096), i, i < last / 2 && i % 2 ? last - i : i + 2});
  measure(report, "plan memory", std::to_string(buffers) + " buffers", buffers, [&] { plan_memory(lives); });
}

// Measures the work before the first step of a training run: recording and compiling the model, its gradients
// and AdamW. The graph has as many nodes as the graph of GPT-2. The parameters are small and already exist.
void training_step(Report& report) {
  if (!report.selects("GPT")) return;
  const Settings& settings = report.settings;
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
  for (const auto& [part, seconds] :
       {std::pair("record", record), {"differentiate", differentiate}, {"compile", planned}, {"all", all}})
    add_row(report, std::string("GPT 12 layers: ") + part, shape, 1, seconds,
            static_cast<std::int64_t>(nodes));
}

}  // namespace

void run_overhead(Report& report) {
  const std::int64_t nodes = report.sizes({10000})[0];
  chain(nodes, report);
  planner(nodes, report);
  training_step(report);
}

}  // namespace tg::bench
