// inspect: shows a model, the programs that it compiles to, its attention, and the losses of its training
// runs.
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
#include "core/compile/fused_reductions.h"
#include "tools/common_options.h"
#include "tools/inspect/views.h"
#include "tools/memory_size.h"
#include "tools/model_options.h"
#include "tools/opened_model.h"
#include "tools/output_files.h"
#include "tools/run_tool.h"

namespace {

using namespace tg;

struct Options : ModelOptions, DeviceOptions {
  std::string path, program = "train", filter, prompt;
  std::int64_t vocabulary = 65, batch = 12;
  std::string cache_memory = "1GiB", memory_budget;
  std::size_t budget = 0;  // bytes of `memory_budget`; 0: none
  bool overwrite = false, list = false, graph = false, parameters = false, cache = false;
  CacheMemory memory;                                                      // parsed from `cache_memory`
  std::string graphviz, plan, attention, attention_memory, reads, curves;  // output files
  std::vector<std::string> runs;
  std::int64_t length = 4096, fast_memory = 192;  // for `reads`
};

void declare_options(Args& args, Options& o) {
  declare_model(args, o.path, {.shown = "none: a new model from the options below"});
  declare_model_options(args, o);
  args.option("vocabulary", "N", "number of tokens in the vocabulary", o.vocabulary, {.min = 1, .max = 1e7});
  args.option("program", "NAME",
              "program to show: a training step, an evaluation, or the generation of one token with a "
              "key-value cache",
              o.program, {.choices = {"train", "evaluate", "token"}});
  args.option("batch", "N", "rows of tokens in a batch", o.batch, {.min = 1, .max = 65536});
  declare_device_options(args, o);
  args.option("memory-budget", "SIZE",
              "limit for the peak memory of a training step, as in train --memory-budget", o.memory_budget,
              {.shown = "none"});
  args.flag("list-steps", "list every step with the shapes it reads and writes", o.list);
  args.option("filter", "TEXT", "count and list only steps whose name contains TEXT", o.filter,
              {.shown = "all"});
  args.flag("graph", "print every node of the recorded graph, before fusion", o.graph);
  const ArgLimits none{.shown = "none"}, picture{.shown = "none", .suffix = ".png"};
  args.option("graphviz", "FILE", "file to write the graph to, for Graphviz: dot -Tsvg FILE", o.graphviz,
              none);
  args.option("plot-plan", "FILE.png",
              "picture of the memory plan to write: every buffer over steps and addresses", o.plan, picture);
  args.flag("parameters", "print the number of elements and bytes of each layer's parameters", o.parameters);
  args.flag("cache",
            "print the bytes of a token in a key-value cache, and how many sequences fit in --cache-memory",
            o.cache);
  args.option("cache-memory", "SIZE",
              "cache memory for --cache, such as 64MiB, or a number of tokens, such as 16384tokens",
              o.cache_memory);
  args.option("plot-attention", "FILE.png",
              "picture of the attention weights to write, for each head of --model on --prompt", o.attention,
              picture);
  args.option("prompt", "TEXT", "text for --plot-attention, no longer than the model's context", o.prompt,
              none);
  args.option("plot-attention-memory", "FILE.png",
              "picture of the attention memory to write, for 256 to 65536 tokens, fused and with the score "
              "matrix in memory",
              o.attention_memory, picture);
  args.option("plot-reads", "FILE.png",
              "picture of the memory reads of attention to write, by tile size, in the model of the "
              "FlashAttention paper",
              o.reads, picture);
  args.option("length", "N", "sequence length in tokens, for --plot-reads", o.length,
              {.min = 1, .max = 1 << 30});
  args.option(
      "fast-memory", "KIB",
      "size of the fast memory that holds a tile, for --plot-reads, such as a GPU's shared memory per block",
      o.fast_memory, {.min = 1, .max = 1 << 30});
  args.option("plot-curves", "FILE.png", "picture of the losses of every --run to write", o.curves, picture);
  args.option("run", "RUN", "run of train for --plot-curves; may be repeated", o.runs, none);
  declare_overwrite(args, o.overwrite);
  args.example("inspect --architecture llama --key-heads 2 --list-steps",
               "list every step of a training program");
  args.example("inspect --architecture deepseek --program evaluate --filter layers.0.self_attn --list-steps",
               "list the forward pass of the first attention layer");
  args.example("inspect --model out/train --program token", "show the cost of one generated token");
  args.example("inspect --program evaluate --graph --graphviz graph.dot && dot -Tsvg graph.dot > graph.svg",
               "print and draw the graph of the forward pass");
  args.example("inspect --layers 12 --plot-plan plan.png", "draw the memory plan of a training step");
  args.example("inspect --model out/train --parameters", "print the size of each layer of a model");
  args.example("inspect --model out/train --cache --cache-memory 64MiB",
               "print how many sequences fit in a cache of 64 MiB");
  args.example("inspect --model out/train --prompt 'To be, or not to be' --plot-attention attention.png",
               "draw a heat map for each head of each layer");
  args.example("inspect --heads 8 --width 512 --batch 1 --plot-attention-memory memory.png",
               "draw the exact peaks of fused and standard attention, from the memory plan");
  args.example("inspect --heads 8 --width 512 --plot-reads reads.png --length 16384 --fast-memory 227",
               "draw the reads on a GPU with 227 KiB of shared memory per block");
  args.example("inspect --plot-curves curves.png --run out/gpt --run out/llama",
               "draw the losses of two runs");
}

bool is_copy(const Step& s) {
  const std::string kind = kind_of(s);
  for (const char* name : {"copy", "contiguous"})
    if (kind == name || kind == std::string("fused to ") + name) return true;
  return false;
}

// Prints the number of steps by op, the copies, and the memory.
void print_summary(const Options& o, const Program& program) {
  std::map<std::string, int> count;
  int steps = 0, copies = 0;
  std::size_t copied = 0;
  for (const Step& s : program.steps()) {
    if (s.name.find(o.filter) == std::string::npos) continue;
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

// Prints the cost of a memory budget.
void print_budget(const train::TrainingProgram& training) {
  const MemoryReport::Recomputed again = training.memory().recomputed;
  std::printf("budget       saves %.2f MiB by %s of the loss and %s recomputed, which move %.2f MiB\n",
              static_cast<double>(again.saved) / (1 << 20), counted(training.loss_chunks(), "chunk").c_str(),
              counted(again.steps, "step").c_str(), again.moved / (1 << 20));
  if (again.products > 0)
    std::printf(
        "             %d of them matmuls or attention, %.4g GFLOP: recomputing cheap steps does not "
        "suffice\n",
        again.products, 1e-9 * again.flops);
  if (again.price > 0)
    std::printf("             total time about the same as copying %.2f MiB\n", again.price / (1 << 20));
}

// Prints one line per step. For a fused elementwise step, the line already shows the ops, so the kernel is
// omitted.
void print_steps(const Options& o, const Program& program) {
  std::istringstream all(program.text());
  std::size_t step = 0;
  for (std::string line; std::getline(all, line); ++step) {
    if (program.steps()[step].name.find(o.filter) == std::string::npos) continue;
    const Step& s = program.steps()[step];
    const bool is_fused_step = fused_text_of(*s.op, s.attrs);
    std::printf("%s%s\n", line.c_str(), is_fused_step ? "" : ("  " + program.choice(step)).c_str());
  }
}

// Prints the requested views of the program. The summary is omitted if only other views were requested.
void show(const Options& o, const std::string& name, const Program& program) {
  const bool other =
      o.parameters || o.cache || !o.attention.empty() || !o.attention_memory.empty() || !o.reads.empty();
  if (!other || o.list || o.graph || !o.graphviz.empty() || !o.plan.empty()) print_summary(o, program);
  if (o.list) print_steps(o, program);
  if (o.graph) std::fputs(graph_text(program.graph(), program.outputs()).c_str(), stdout);
  const std::string title = name + (o.program == "train"   ? ", a training step"
                                    : o.program == "token" ? ", a token"
                                                           : ", evaluation");
  if (!o.graphviz.empty())
    write_file(o.graphviz, graphviz(program.graph(), program.outputs(), title), "inspect");
  if (!o.plan.empty()) plot::save_plot(o.plan, plan_plot(program, title));
  if (o.attention_memory.empty() && o.reads.empty()) return;
  const AttentionCall call = attention_of(program);
  if (!o.attention_memory.empty()) {
    const auto peaks = attention_peaks(call, o.device, o.thread_count());
    std::printf("attention    forward and backward, %s\n%s", call.text().c_str(),
                attention_memory_text(peaks).c_str());
    plot::save_plot(o.attention_memory, attention_memory_plot(call, peaks));
  }
  if (!o.reads.empty()) {
    const ReadModel reads{o.length, call.width,
                          o.fast_memory * 1024 / static_cast<std::int64_t>(size_of(call.dtype))};
    if (const std::string mistake = reads.mistake(); !mistake.empty())
      throw Error("[inspect] --plot-reads" + mistake);
    std::printf("reads        of one head, T = %lld, d = %lld, fast memory of %lld numbers\n%s",
                static_cast<long long>(reads.T), static_cast<long long>(reads.d),
                static_cast<long long>(reads.M), reads_text(reads).c_str());
    plot::save_plot(o.reads, reads_plot(reads));
  }
}

void show_attention(const Options& o, const OpenedModel& opened) {
  const nn::Model model = opened.load(f32, o.device);
  const std::vector<std::int32_t> ids = opened.tokenizer->encode(o.prompt);
  if (std::ssize(ids) > opened.context)
    throw Error("[inspect] --prompt has " + std::to_string(ids.size()) +
                " tokens, more than the model's context of " + std::to_string(opened.context));
  std::vector<std::string> tokens;
  for (const std::int32_t& id : ids) tokens.push_back(opened.tokenizer->decode(std::span(&id, 1)));
  const auto maps = nn::attention_maps(model, ids, o.thread_count());
  plot::draw_heat_maps(attention_picture(maps, tokens, opened.config.text() + ": attention"))
      .save_png(o.attention);
}

void show_cache(const Options& o, const nn::Model& model) {
  const std::vector<CacheRow> token = cache_of_token(model, o.precision());
  const std::int64_t bytes = bytes_of(token), context = model.context();
  std::printf("cache        %s bytes per token, %s for a sequence of %s\n%s", grouped(bytes).c_str(),
              size_text(static_cast<double>(bytes) * static_cast<double>(context)).c_str(),
              grouped(context).c_str(), cache_text(token).c_str());
  std::vector<std::int64_t> lengths{context};
  for (int i = 0; i < 3 && lengths.back() >= 4; ++i) lengths.push_back(lengths.back() / 4);
  const double all = o.memory.bytes(bytes);
  std::printf("fits         in %s: tokens, and sequences by length\n%s", size_text(all).c_str(),
              fits_text(cache_fits(all, bytes, context, {16, 64, 128}, lengths), lengths).c_str());
}

void show_curves(const Options& o) {
  std::vector<NamedRun> runs;
  for (const std::string& directory : o.runs) runs.push_back(read_run(directory));
  std::fputs(runs_text(runs).c_str(), stdout);
  plot::save_plot(o.curves, curves_plot(runs));
}

void inspect(const Options& o) {
  std::optional<OpenedModel> opened;
  nn::ModelConfig config = o.model;
  config.vocabulary = o.vocabulary;
  if (!o.path.empty()) config = opened.emplace(open_model(o.path)).config;
  nn::Params params(0, f32, o.device);
  const nn::Model model(params, config);
  const std::string name = config.text();
  std::printf("model        %s\n", name.c_str());
  if (o.parameters) std::fputs(sizes_text(sizes_by_layer(params.all())).c_str(), stdout);
  if (o.cache) show_cache(o, model);
  if (!o.attention.empty()) show_attention(o, *opened);
  const train::ProgramOptions options{.batch = o.batch,
                                      .threads = o.thread_count(),
                                      .plan_only = true,
                                      .precision = o.precision(),
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

// Returns a message if the options contradict each other, otherwise "".
std::string mistake_in(const Args& args, Options& o) {
  for (const auto& [option, other] : {std::pair("plot-attention", "model"),
                                      {"plot-attention", "prompt"},
                                      {"prompt", "plot-attention"},
                                      {"plot-curves", "run"},
                                      {"run", "plot-curves"},
                                      {"length", "plot-reads"},
                                      {"fast-memory", "plot-reads"},
                                      {"cache-memory", "cache"}})
    if (args.given(option) && !args.given(other)) return "--" + std::string(option) + " needs --" + other;
  if (args.given("model"))
    if (std::string mistake = not_with_model(args, o); !mistake.empty()) return mistake;
  if (o.budget > 0 && o.program != "train") return "--memory-budget requires --program train";
  if (args.given("prompt") && o.prompt.empty()) return "--prompt is empty";
  return "";
}

// Whether anything except the loss curves was requested.
bool asks_for_a_model(const Args& args) {
  for (const std::string& name : args.names())
    if (name != "plot-curves" && name != "run" && name != "overwrite" && args.given(name)) return true;
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  Args args("inspect",
            "Shows the programs that a model compiles to, its memory, its attention weights, and the losses "
            "of its runs.");
  declare_options(args, o);
  return run_tool("inspect", [&]() -> int {
    if (const auto code = args.parse(argc, argv)) return *code;
    check_usage(take_model(args, o));
    take_device(o, o.backend);
    check_usage(take_bytes("memory-budget", o.memory_budget, o.budget));
    check_usage(mistake_in(args, o));
    check_usage(parse_cache_memory(o.cache_memory, o.memory));
    check_outputs("inspect", {o.graphviz, o.plan, o.attention, o.attention_memory, o.reads, o.curves},
                  o.overwrite);
    if (!o.curves.empty()) show_curves(o);
    if (o.curves.empty() || asks_for_a_model(args)) inspect(o);
    return 0;
  });
}
