// bench measures the kernels, the executor and the compiler, as shares of this machine's peak rates.
#include <algorithm>
#include <iterator>
#include <thread>

#include <tilegrad/io/files/file.h>
#include "backends/cpu/pool.h"
#include "core/os/thread.h"
#include "tools/args.h"
#include "tools/bench/modes.h"
#include "tools/bench/options.h"
#include "tools/bench/scaling.h"
#include "tools/output_files.h"
#include "tools/run_as_rank.h"

namespace {

using namespace tg;
using namespace tg::bench;

struct Mode {
  const char* name;
  void (*run)(const Settings&, const Machine&, Report&);
  std::size_t sizes;  // numbers in its --shape
};
constexpr Mode modes[] = {
    {"gemm", run_gemm, 3},   {"attention", run_attention, 4}, {"decode", run_decode, 4},
    {"ops", run_ops, 2},     {"overhead", run_overhead, 1},   {"train", run_train, 5},
    {"lora", run_lora, 7},   {"tokens", run_tokens, 1},       {"generate", run_generate, 1},
    {"serve", run_serve, 5}, {"load", run_load, 4},           {"ranks", run_ranks, 1}};

// `join` meets the other ranks, for the mode that measures them.
template <class Join>
int run(int argc, char** argv, const Join& join) {
  std::string mode, json, backend_name = "cpu", dtype = "f32";
  std::vector<std::string> shapes;
  std::int64_t threads = 0;
  bool quick = false, overwrite = false;
  Settings settings;
  AttentionCommandLine attention;
  ServeCommandLine serve;
  TrainCommandLine train;
  std::vector<std::string> names;
  for (const Mode& m : modes) names.push_back(m.name);

  Args args("bench", "Measures tilegrad on this machine, as shares of its own peak rates.");
  args.positional("mode", "what to measure", mode, {.choices = names, .required = true});
  args.option("backend", "NAME", "device to measure: cpu, cuda, or cuda:N for GPU N", backend_name);
  args.option(
      "dtype", "TYPE",
      "precision of attention, decode, ops, train, lora, generate and serve; tf32 rounds the operands of "
      "matmuls on a GPU",
      dtype, {.choices = {"f32", "tf32", "bf16", "f16", "f64"}});
  args.option("threads", "N", "threads to run on; one is pinned to a core", threads,
              {.min = 1, .max = cpu::max_threads, .shown = "TG_THREADS, or all cores"});
  args.option("json", "FILE", "also write the rows to this file", json);
  declare_overwrite(args, overwrite);
  args.option("filter", "TEXT", "only rows whose name contains TEXT", settings.filter);
  args.option("shape", "AxBx…",
              "measure this size instead of the mode's default ones; may be repeated: gemm MxNxK, ops "
              "ROWSxCOLUMNS, overhead NODES, ranks ELEMENTS or as attention, train "
              "LAYERSxHEADSxWIDTHxCONTEXTxBATCH, lora "
              "the same and "
              "xVOCABULARYxRANK, tokens VOCABULARY, "
              "generate CONTEXT, load LAYERSxWIDTHxMLPxVOCABULARY, serve "
              "LAYERSxHEADSxWIDTHxCONTEXTxVOCABULARY or 124M, attention and decode "
              "BxHxLxd (without and with a causal mask) or "
              "B=,H=,Hk=,L=,T=,d=,dv=,length=,page=,window=,causal,free_order,ragged,v_in_k (length=N: N of "
              "the T keys "
              "are valid, by kv_lengths; ragged: 1 to T of them; page=N: in decode, paged_attn with pages of "
              "N keys; window=N: N keys before a "
              "query's own, and after it unless causal; v_in_k: values are the first columns of keys)",
              shapes, {.shown = "each mode's default sizes"});
  attention.declare(args);
  serve.declare(args);
  train.declare(args);
  args.option("text", "FILE", "text for the mode `tokens`", settings.text,
              {.shown = "a megabyte of made-up words"});
  args.option("seconds", "S", "minimum time for each row", settings.seconds, {.min = 0, .max = 3600});
  args.flag("quick", "a quick run of each row, not a measurement", quick);
  args.example("bench gemm --threads 1", "matrix products on one pinned core");
  args.example("bench attention --json attention.json", "flash attention on all cores, rows also as JSON");
  args.example("bench attention --backend cuda --dtype bf16 --compare --plot attention.png",
               "beside PyTorch on a GPU, as a table and as bars");
  args.example("bench attention --shape B=4,H=32,Hk=8,L=4096,d=128,causal,window=512", "a cell of one's own");
  args.example("bench attention --backend cuda --dtype bf16 --traffic", "bytes that attention moves");
  args.example("bench decode --threads 1", "one query after many keys, beside the rate of reading memory");
  args.example("bench decode --backend cuda --dtype bf16 --compare",
               "attention of one query and products of few rows beside PyTorch's");
  args.example("bench serve --requests 500 --plot pages.png",
               "many texts at once, in a contiguous cache and in pages of one");
  args.example("bench load", "a Hugging Face folder into bf16 weights, beside the rate of reading its file");
  args.example(
      "bench train --architecture llama --layers 12 --heads 12 --width 768 --context 1024 --vocabulary 32000 "
      "--batch 8 --backend cuda --dtype bf16 --compare --plot step.png",
      "a model's training step beside PyTorch's, and where its time goes");
  args.example("bench lora --backend cuda --dtype bf16",
               "a step of fine-tuning GPT-2 with LoRA beside one that trains all parameters");
  args.example("launch -n 2 bench ranks --backend cuda --dtype bf16", "what two GPUs take to exchange data");
  args.example(
      "launch -n 2 bench ranks --backend cuda --dtype bf16 --layers 12 --heads 12 --width 768 --context 1024 "
      "--vocabulary 50304 --batch 32",
      "a training step on two GPUs beside that of one");
  args.example("bench ranks --rows on1.json --rows on2.json --rows on4.json --plot scaling.png",
               "how far runs scale that launch -n 1, 2 and 4 bench ranks --json on1.json, … measured");
  args.example("bench ops --filter softmax --shape 4096x4096", "one op on one shape");
  if (const auto code = args.parse(argc, argv)) return *code;
  const Mode& m =
      *std::find_if(std::begin(modes), std::end(modes), [&](const Mode& x) { return x.name == mode; });
  if (quick) {
    settings.seconds = 0;
    settings.copy_bytes = 1 << 20;
    if (!args.given("requests")) serve.settings.random.requests = 8;
  }
  if (mode == "ranks" && train.settings.rows.empty()) {
    const std::shared_ptr<parallel::Group> group = join();
    settings.ranks = {group, &group->communicator()};
    backend_name = own_gpu(backend_name, settings.ranks->size());
  }
  settings.device = Device::parse(backend_name);
  settings.tf32 = dtype == "tf32";
  for (DType t : {f64, bf16, f16})
    if (name_of(t) == dtype) settings.dtype = t;
  if (std::string mistake = attention.take(args, mode, shapes, settings); !mistake.empty())
    return args.fail(mistake);
  if (std::string mistake = serve.take(args, mode); !mistake.empty()) return args.fail(mistake);
  settings.serve = serve.settings;
  if (std::string mistake = train.take(args, mode, shapes); !mistake.empty()) return args.fail(mistake);
  settings.train = train.settings;
  check_outputs("bench", {json, settings.train.plot}, overwrite, {settings.text, settings.serve.trace});
  for (const std::string& s : shapes) {
    if (mode == "attention" || mode == "decode") break;
    if (mode == "ranks" && is_cell(s)) continue;
    settings.shapes.push_back(parse_shape(mode == "serve" ? serve_shape(s) : s));
    if (settings.shapes.back().size() != m.sizes)
      return args.fail("--shape got '" + s + "', expected " + std::to_string(m.sizes) + " sizes joined by x");
  }
  if (!settings.train.rows.empty()) {
    draw_scaling(read_scaling(settings.train.rows)).save_png(settings.train.plot);
    return 0;
  }
  const bool on_cpu = settings.device.kind == Device::cpu_kind;
  const auto cores = static_cast<std::int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  if (on_cpu && threads > cores)
    return args.fail("--threads got " + std::to_string(threads) + ", expected at most " +
                     std::to_string(cores) + ", a thread for each core");
  settings.threads = !on_cpu ? 1 : threads > 0 ? static_cast<int>(threads) : cpu::default_threads();
  // Each thread stays on one core. Ranks would share a core.
  if (on_cpu && !settings.ranks) os::limit_processors(settings.threads);
  if (attention.traffic) return run_attention_traffic(settings);
  if (!attention.once.empty()) return run_attention_once(settings);
  const Machine machine = measure_machine(settings);
  Report report(machine, settings);
  if (!settings.train.model || settings.ranks) report.head();
  const std::vector<std::vector<std::int64_t>> sizes = settings.shapes;
  if (sizes.size() < 2 || mode == "ranks") {
    m.run(settings, machine, report);
  } else {
    for (const std::vector<std::int64_t>& shape : sizes)
      settings.shapes = {shape}, m.run(settings, machine, report);
  }
  if (report.empty()) {
    std::fprintf(stderr, "bench: no row of %s has '%s' in its name\n", mode.c_str(), settings.filter.c_str());
    return 2;
  }
  if (!json.empty() && (!settings.ranks || settings.ranks->rank() == 0)) {
    const std::string text = report.json();
    const std::string_view piece = text;
    io::replace_file(json, std::span(&piece, 1), "bench");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_as_rank("bench", [&](const auto& join) { return run(argc, argv, join); });
}
