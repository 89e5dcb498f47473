// inspect shows a model, the programs that it compiles to, its attention and the losses of its runs.
#include <cstdio>
#include <map>
#include <new>
#include <sstream>

#include <tilegrad/core/report/graph_text.h>
#include <tilegrad/core/report/profile.h>
#include <tilegrad/core/run/backend.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/nn/layers/kv_cache.h>
#include <tilegrad/ops/ops.h>
#include <tilegrad/train/training.h>
#include "core/compile/reduced_chains.h"
#include "tools/inspect/attention_views.h"
#include "tools/inspect/curves.h"
#include "tools/inspect/memory_views.h"
#include "tools/memory_size.h"
#include "tools/model_options.h"
#include "tools/output_files.h"
#include "tools/run_tool.h"
#include "tools/trained_model.h"

namespace {

using namespace tg;

struct Options : ModelOptions {
  std::string trained, program = "train", steps, backend = "cpu", dtype = "f32";
  std::int64_t vocabulary = 65, batch = 12, threads = 0;
  std::string cache_memory = "1GiB", memory_budget;
  std::size_t budget = 0;  // bytes of `memory_budget`; 0: none
  bool overwrite = false, list = false, graph = false, parameters = false, cache = false;
  CacheMemory memory;                                                            // of `cache_memory`
  std::string graphviz, plan, attention, text, attention_memory, reads, curves;  // files, except `text`
  std::vector<std::string> runs;
  std::int64_t length = 4096, fast_memory = 192;  // of `reads`
  Device device;                                  // of `backend`
};

void declare_options(Args& args, Options& o) {
  args.option("model", "RUN",
              "a run of train, or one of its checkpoints, instead of a model of the options below", o.trained,
              {.shown = "none"});
  declare_model_options(args, o);
  args.option("vocabulary", "N", "distinct tokens", o.vocabulary, {.min = 1, .max = 1e7});
  args.option("program", "NAME", "a training step, an evaluation, or one token with a key-value cache",
              o.program, {.choices = {"train", "evaluate", "token"}});
  args.option("batch", "N", "rows of tokens in a step", o.batch, {.min = 1, .max = 65536});
  args.option("backend", "NAME", "cpu, cuda, or cuda:N for GPU N", o.backend);
  args.option("dtype", "TYPE", "precision, as for train --dtype", o.dtype,
              {.choices = {"f32", "tf32", "bf16", "f16"}});
  args.option("memory-budget", "SIZE", "peak memory of a training step, as for train --memory-budget",
              o.memory_budget, {.shown = "none"});
  args.option("threads", "N", "threads; 0: TG_THREADS or all cores", o.threads,
              {.min = 0, .max = cpu::max_threads});
  args.flag("list", "every step, with the shapes it reads and writes", o.list);
  args.option("steps", "TEXT", "count and list only steps whose name contains TEXT", o.steps,
              {.shown = "all"});
  args.flag("graph", "every node of the recorded graph, before fusion", o.graph);
  const ArgLimits none{.shown = "none"}, picture{.shown = "none", .suffix = ".png"};
  args.option("graphviz", "FILE", "the graph, for Graphviz to draw: dot -Tsvg FILE", o.graphviz, none);
  args.option("plan", "FILE.png", "the memory plan: every buffer over steps and addresses", o.plan, picture);
  args.flag("parameters", "numbers and bytes of each layer's parameters", o.parameters);
  args.flag("cache", "bytes of a token in a key-value cache, and the texts that fit in --cache-memory",
            o.cache);
  args.option("cache-memory", "SIZE", "for --cache: KiB, MiB, GiB, or a number of tokens: 16384tokens",
              o.cache_memory);
  args.option("attention", "FILE.png", "the attention weights of each head of --model, on --text",
              o.attention, picture);
  args.option("text", "TEXT", "text for --attention, at most the model's context", o.text, none);
  args.option("attention-memory", "FILE.png",
              "memory of the model's attention for 256 to 65536 tokens, fused and with its matrix in memory",
              o.attention_memory, picture);
  args.option(
      "reads", "FILE.png",
      "numbers that attention reads from memory, by tile size, in the model of FlashAttention's paper",
      o.reads, picture);
  args.option("length", "N", "tokens for --reads", o.length, {.min = 1, .max = 1 << 30});
  args.option("fast-memory", "KIB",
              "for --reads: size of the memory that holds a tile, such as a GPU's shared memory",
              o.fast_memory, {.min = 1, .max = 1 << 30});
  args.option("curves", "FILE.png", "the losses of every --run", o.curves, picture);
  args.option("run", "DIR", "for --curves: an output directory of train; may be repeated", o.runs, none);
  declare_overwrite(args, o.overwrite);
  args.example("inspect --architecture llama --key-heads 2 --list", "every step of a training step");
  args.example("inspect --architecture deepseek --program evaluate --steps layers.0.self_attn --list",
               "the first attention layer's forward");
  args.example("inspect --model out/train --program token", "the cost of one generated token");
  args.example("inspect --program evaluate --graph --graphviz graph.dot && dot -Tsvg graph.dot > graph.svg",
               "the forward pass as text and as a picture");
  args.example("inspect --layers 12 --plan plan.png", "the memory of a training step");
  args.example("inspect --model out/train --parameters", "the size of each layer of a model");
  args.example("inspect --model out/train --cache --cache-memory 64MiB",
               "the texts that a cache of 64 MiB has room for");
  args.example("inspect --model out/train --text 'To be, or not to be' --attention attention.png",
               "a heat map for each head of each layer");
  args.example("inspect --heads 8 --width 512 --batch 1 --attention-memory memory.png",
               "exact peaks of both kinds of attention, from the plan");
  args.example("inspect --heads 8 --width 512 --reads reads.png --length 16384 --fast-memory 227",
               "on a GPU whose blocks have 227 KiB");
  args.example("inspect --curves curves.png --run out/gpt --run out/llama", "two runs side by side");
}

bool is_copy(const Step& s) {
  const std::string kind = kind_of(s);
  for (const char* name : {"copy", "contiguous"})
    if (kind == name || kind == std::string("chain to ") + name) return true;
  return false;
}

// Steps by op, copies and memory.
void print_summary(const Options& o, const Program& program) {
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
  std::printf("memory       %.2f MiB: parameters and state %.2f, intermediate results %.2f, workspace %.2f\n",
              mib(m.peak()), mib(m.parameters), mib(m.arena), mib(m.workspace));
}

// What a memory budget costs.
void print_budget(const train::TrainingProgram& training) {
  const MemoryReport::Recomputed again = training.memory().recomputed;
  std::printf("budget       %.2f MiB less by %s of the loss and %s done again, which move %.2f MiB\n",
              static_cast<double>(again.saved) / (1 << 20), counted(training.loss_chunks(), "chunk").c_str(),
              counted(again.steps, "step").c_str(), again.moved / (1 << 20));
  if (again.products > 0)
    std::printf("             %d of them products or attention, %.4g GFLOP: what is cheap is not enough\n",
                again.products, 1e-9 * again.flops);
  if (again.price > 0)
    std::printf("             in all about as long as copying %.2f MiB\n", again.price / (1 << 20));
}

// What a chain computes stands in its line already.
void print_steps(const Options& o, const Program& program) {
  std::istringstream all(program.text());
  std::size_t step = 0;
  for (std::string line; std::getline(all, line); ++step) {
    if (program.steps()[step].name.find(o.steps) == std::string::npos) continue;
    const Step& s = program.steps()[step];
    const bool is_chain = chain_of(*s.op, s.attrs);
    std::printf("%s%s\n", line.c_str(), is_chain ? "" : ("  " + program.choice(step)).c_str());
  }
}

void write_text(const std::string& path, const std::string& text) {
  const std::string_view piece = text;
  io::replace_file(path, std::span(&piece, 1), "inspect");
}

// Prints what was requested of the program: a summary, unless only something else was requested.
void show(const Options& o, const std::string& name, const Program& program) {
  const bool other =
      o.parameters || o.cache || !o.attention.empty() || !o.attention_memory.empty() || !o.reads.empty();
  if (!other || o.list || o.graph || !o.graphviz.empty() || !o.plan.empty()) print_summary(o, program);
  if (o.list) print_steps(o, program);
  if (o.graph) std::fputs(graph_text(program.graph(), program.outputs()).c_str(), stdout);
  const std::string title = name + (o.program == "train"   ? ", a training step"
                                    : o.program == "token" ? ", a token"
                                                           : ", evaluation");
  if (!o.graphviz.empty()) write_text(o.graphviz, graphviz(program.graph(), program.outputs(), title));
  if (!o.plan.empty()) plot::save_plot(o.plan, plan_plot(program, title));
  if (o.attention_memory.empty() && o.reads.empty()) return;
  const AttentionCall call = attention_of(program);
  if (!o.attention_memory.empty()) {
    const auto peaks = attention_peaks(call, o.device, static_cast<int>(o.threads));
    std::printf("attention    forward and backward, %s\n%s", call.text().c_str(),
                attention_memory_text(peaks).c_str());
    plot::save_plot(o.attention_memory, attention_memory_plot(call, peaks));
  }
  if (!o.reads.empty()) {
    const ReadModel reads{o.length, call.width,
                          o.fast_memory * 1024 / static_cast<std::int64_t>(size_of(call.dtype))};
    if (const std::string mistake = reads.mistake(); !mistake.empty())
      throw Error("[inspect] --reads" + mistake);
    std::printf("reads        of one head, T = %lld, d = %lld, fast memory of %lld numbers\n%s",
                static_cast<long long>(reads.T), static_cast<long long>(reads.d),
                static_cast<long long>(reads.M), reads_text(reads).c_str());
    plot::save_plot(o.reads, reads_plot(reads));
  }
}

void show_attention(const Options& o, const CheckpointModel& saved, const nn::Model& model) {
  const auto tokenizer = saved.tokenizer();
  const std::vector<std::int32_t> ids = tokenizer->encode(o.text);
  if (std::ssize(ids) > saved.config.context)
    throw Error("[inspect] --text has " + std::to_string(ids.size()) +
                " tokens, more than the model's context of " + std::to_string(saved.config.context));
  std::vector<std::string> tokens;
  for (const std::int32_t& id : ids) tokens.push_back(tokenizer->decode(std::span(&id, 1)));
  const auto maps = nn::attention_maps(model, ids, static_cast<int>(o.threads));
  plot::draw_heat_maps(attention_picture(maps, tokens, saved.config.text() + ": attention"))
      .save_png(o.attention);
}

void show_cache(const Options& o, const nn::Model& model) {
  const std::vector<CacheRow> token = cache_of_token(model, nn::precision_named(o.dtype));
  const std::int64_t bytes = bytes_of(token), context = model.context();
  std::printf("cache        %s bytes a token, %s a text of %s\n%s", grouped(bytes).c_str(),
              size_text(static_cast<double>(bytes) * static_cast<double>(context)).c_str(),
              grouped(context).c_str(), cache_text(token).c_str());
  std::vector<std::int64_t> lengths{context};
  for (int i = 0; i < 3 && lengths.back() >= 4; ++i) lengths.push_back(lengths.back() / 4);
  const double all = o.memory.bytes(bytes);
  std::printf("fits         in %s: tokens, and texts by their length\n%s", size_text(all).c_str(),
              fits_text(cache_fits(all, bytes, context, {16, 64, 128}, lengths), lengths).c_str());
}

void show_curves(const Options& o) {
  std::vector<NamedRun> runs;
  for (const std::string& directory : o.runs) runs.push_back(read_run(directory));
  std::fputs(runs_text(runs).c_str(), stdout);
  plot::save_plot(o.curves, curves_plot(runs));
}

void inspect(const Options& o) {
  std::optional<CheckpointModel> saved;
  nn::ModelConfig config = o.model;
  config.vocabulary = o.vocabulary;
  if (!o.trained.empty()) config = saved.emplace(o.trained).config;
  nn::Params params(0, f32, o.device);
  const nn::Model model(params, config);
  const std::string name = config.text();
  std::printf("model        %s\n", name.c_str());
  if (o.parameters) std::fputs(sizes_text(sizes_by_layer(params.all())).c_str(), stdout);
  if (o.cache) show_cache(o, model);
  if (!o.attention.empty()) {
    saved->restore(params);
    show_attention(o, *saved, model);
  }
  const train::ProgramOptions options{.batch = o.batch,
                                      .threads = static_cast<int>(o.threads),
                                      .plan_only = true,
                                      .precision = nn::precision_named(o.dtype),
                                      .memory_budget = o.budget};
  if (o.program == "train") {
    optim::AdamW::Options adamw;
    if (options.precision == nn::Precision::f16) adamw.loss_scale = optim::LossScale{};
    const optim::AdamW optimizer(params.all(), adamw);
    train::TrainingProgram training(model, optimizer, options);
    if (o.budget > 0) print_budget(training);
    return show(o, name, training.program());
  }
  if (o.program == "evaluate") {
    train::EvaluationProgram evaluation(model, options);
    return show(o, name, evaluation.program());
  }
  check_cache_memory(model, o.batch, options.precision);
  Graph graph;
  nn::KvCache cache(o.batch, config.context, o.device);
  nn::CacheCall call(graph, cache, 1);
  const nn::Autocast autocast(graph, options.precision);
  const Tensor logits = model(graph.input("tokens", {o.batch, 1}, i32), {.cache = &call});
  show(o, name,
       compile(graph, {logits},
               {.assign = call.assign(),
                .threads = options.threads,
                .tf32 = options.precision == nn::Precision::tf32,
                .plan_only = true}));
}

// What is wrong with a combination of options, or nothing.
std::string mistake_in(const Args& args, Options& o) {
  const auto missing_partner = [&](const char* option, const char* other) {
    return args.given(option) && !args.given(other) ? "--" + std::string(option) + " needs --" + other : "";
  };
  for (const auto& [option, other] : {std::pair("attention", "model"),
                                      {"attention", "text"},
                                      {"text", "attention"},
                                      {"curves", "run"},
                                      {"run", "curves"},
                                      {"length", "reads"},
                                      {"fast-memory", "reads"},
                                      {"cache-memory", "cache"}})
    if (const std::string mistake = missing_partner(option, other); !mistake.empty()) return mistake;
  if (args.given("model"))
    for (const std::string& name : names_of_model_options(o))
      if (args.given(name)) return "--" + name + " cannot be used with --model: the run determines it";
  if (o.budget > 0 && o.program != "train") return "--memory-budget is for --program train";
  if (args.given("text") && o.text.empty()) return "--text is empty";
  return "";
}

// Whether anything except the curves was requested.
bool asks_for_a_model(const Args& args) {
  for (const std::string& name : args.names())
    if (name != "curves" && name != "run" && name != "overwrite" && args.given(name)) return true;
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  Args args(
      "inspect",
      "Shows what a model compiles to, where its memory goes, what it attends to, and how its runs went.");
  declare_options(args, o);
  return run_tool("inspect", [&]() -> int {
    if (const auto code = args.parse(argc, argv)) return *code;
    if (const std::string mistake = take_model(args, o); !mistake.empty()) return args.fail(mistake);
    if (const std::string mistake = take_device(o.backend, o.device); !mistake.empty())
      return args.fail(mistake);
    if (const std::string mistake = take_bytes("memory-budget", o.memory_budget, o.budget); !mistake.empty())
      return args.fail(mistake);
    if (const std::string mistake = mistake_in(args, o); !mistake.empty()) return args.fail(mistake);
    if (const std::string mistake = parse_cache_memory(o.cache_memory, o.memory); !mistake.empty())
      return args.fail(mistake);
    check_outputs("inspect", {o.graphviz, o.plan, o.attention, o.attention_memory, o.reads, o.curves},
                  o.overwrite);
    if (!o.curves.empty()) show_curves(o);
    if (o.curves.empty() || asks_for_a_model(args)) inspect(o);
    return 0;
  });
}
