// inspect: what a model compiles to, from the command line.
#include <cstdio>
#include <map>
#include <new>

#include "core/backend.h"
#include "io/checkpoint.h"
#include "io/model_file.h"
#include "nn/profile.h"
#include "nn/training.h"
#include "ops/ops.h"
#include "tools/model_options.h"
#include "tools/run_tool.h"

namespace {

using namespace tg;

struct Options : ModelOptions {
  std::string checkpoint, program = "train", steps, backend = "cpu", dtype = "f32";
  std::int64_t vocabulary = 65, batch = 12, threads = 0;
  bool list = false;
  Device device;  // of `backend`
};

void declare_options(Args& args, Options& o) {
  args.option("checkpoint", "DIR", "the model of a run of train, in place of the options below", o.checkpoint,
              {.shown = "none"});
  declare_model_options(args, o);
  args.option("vocabulary", "N", "distinct tokens", o.vocabulary, {.min = 1, .max = 1e7});
  args.option("program", "NAME", "a training step, an evaluation, or a token after a key-value cache",
              o.program, {.choices = {"train", "evaluate", "token"}});
  args.option("batch", "N", "rows of tokens in a step", o.batch, {.min = 1, .max = 65536});
  args.option("backend", "NAME", "cpu, cuda, or cuda:N for another GPU than the first", o.backend);
  args.option("dtype", "TYPE", "what is computed in, as train --dtype", o.dtype,
              {.choices = {"f32", "tf32", "bf16", "f16"}});
  args.option("threads", "N", "threads; 0 takes TG_THREADS or all cores", o.threads, {.min = 0, .max = 1024});
  args.flag("list", "every step, with the shapes it reads and writes", o.list);
  args.option("steps", "TEXT", "count and list only steps whose name contains this", o.steps,
              {.shown = "all"});
  args.example("inspect --model llama --key-heads 2 --list", "every step of a training step");
  args.example("inspect --model deepseek --program evaluate --steps layers.0.self_attn --list",
               "the first attention layer's forward");
  args.example("inspect --checkpoint out/train --program token", "what a token of generate costs");
}

ModelConfig config_of(const Options& o) {
  if (!o.checkpoint.empty()) {
    const Checkpoint checkpoint(o.checkpoint);
    return model_config(checkpoint.load("model.safetensors").metadata,
                        checkpoint.directory() + "/model.safetensors");
  }
  ModelConfig config = o.model;
  config.vocabulary = o.vocabulary;
  return config;
}

bool is_copy(const Step& s) {
  const std::string kind = kind_of(s);
  for (const char* name : {"copy", "contiguous"})
    if (kind == name || kind == std::string("chain to ") + name) return true;
  return false;
}

void print(const Options& o, const Program& program) {
  std::map<std::string, int> count;
  int steps = 0, copies = 0;
  std::size_t copied = 0;
  for (const Step& s : program.steps()) {
    if (s.name.find(o.steps) == std::string::npos) continue;
    ++steps, ++count[kind_of(s)];
    if (!is_copy(s)) continue;
    ++copies;
    copied += static_cast<std::size_t>(s.out[0].layout.numel()) * size_of(s.out[0].dtype);
  }
  std::vector<std::pair<std::string, int>> kinds(count.begin(), count.end());
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [kind, n] : kinds) text += (text.empty() ? "" : ", ") + kind + " " + std::to_string(n);
  const MemoryReport m = program.memory();
  const auto mib = [](std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::printf("steps        %d: %s\n", steps, text.c_str());
  std::printf("copies       %d, of %zu bytes\n", copies, copied);
  std::printf(
      "memory       %.2f MiB: parameters and what lasts %.2f, results in between %.2f, workspace %.2f\n",
      mib(m.peak()), mib(m.parameters), mib(m.arena), mib(m.workspace));
  if (!o.list) return;
  const std::string all = program.text();
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = all.find('\n', at);
    const std::string line = all.substr(at, end - at);
    if (line.substr(0, line.find(": ")).find(o.steps) != std::string::npos) std::printf("%s\n", line.c_str());
    at = end + 1;
  }
}

void inspect(const Options& o) {
  const ModelConfig config = config_of(o);
  Params params(0, f32, o.device);
  const Model model(params, config);
  std::printf("model        %s\n", config.text().c_str());
  const ProgramOptions options{.batch = o.batch,
                               .threads = static_cast<int>(o.threads),
                               .plan_only = true,
                               .precision = precision_named(o.dtype)};
  if (o.program == "train") {
    AdamW::Options adamw;
    if (options.precision == Precision::f16) adamw.loss_scale = LossScale{};
    const AdamW optimizer(params.all(), adamw);
    TrainingProgram training(model, optimizer, options);
    return print(o, training.program());
  }
  if (o.program == "evaluate") {
    EvaluationProgram evaluation(model, options);
    return print(o, evaluation.program());
  }
  Graph graph;
  KvCache cache(o.batch, config.context, o.device);
  CacheCall call(graph, cache, 1);
  const Autocast autocast(graph, options.precision);
  const Tensor logits = model(graph.input("tokens", {o.batch, 1}, i32), Mode::evaluate, &call);
  print(o, compile(graph, {logits},
                   {.assign = call.assign(),
                    .threads = options.threads,
                    .tf32 = options.precision == Precision::tf32,
                    .plan_only = true}));
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  Args args("inspect", "Shows what a model compiles to: steps by op, copies, memory.");
  declare_options(args, o);
  if (const auto code = args.parse(argc, argv)) return *code;
  return run_tool("inspect", [&]() -> int {
    if (const std::string mistake = take_model(args, o); !mistake.empty()) return args.fail(mistake);
    if (const std::string mistake = take_device(o.backend, o.device); !mistake.empty())
      return args.fail(mistake);
    inspect(o);
    return 0;
  });
}
