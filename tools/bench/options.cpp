#include "tools/bench/options.h"

#include <charconv>
#include <cmath>
#include <thread>

#include <tilegrad/core/base/error.h>
#include "backends/cpu/pool.h"
#include "tools/bench/attention_traffic.h"
#include "tools/memory_size.h"
#include "tools/output_files.h"

namespace tg::bench {

namespace {

using Names = std::vector<std::string>;

// Lists modes: "the mode attention", "the modes attention and decode".
std::string listed(const Names& modes) {
  std::string s = modes.size() > 1 ? "the modes " : "the mode ";
  for (std::size_t i = 0; i < modes.size(); ++i)
    s += (i == 0 ? "" : i + 1 < modes.size() ? ", " : " and ") + modes[i];
  return s;
}

// Parses the sizes of "12x64x128". Returns {} if the string is not a shape.
Sizes parse_shape(const std::string& text) {
  Sizes sizes;
  for (const char *at = text.data(), *end = at + text.size();; ++at) {
    std::int64_t n = 0;
    const auto [stop, error] = std::from_chars(at, end, n);
    if (error != std::errc() || n < 1) return {};
    sizes.push_back(n);
    if (stop == end) return sizes;
    if (*stop != 'x') return {};
    at = stop;
  }
}

// Whether a --shape describes a cell, either by keys or by four sizes.
bool is_cell(const std::string& shape) {
  return shape.find('=') != std::string::npos || parse_shape(shape).size() == 4;
}

// The cells of a --shape: BxHxLxd without and with a causal mask, or one cell described by keys.
std::vector<AttentionCell> cells_of(const std::string& text) {
  if (text.find('=') != std::string::npos) return {parse_cell(text)};
  const Sizes n = parse_shape(text);
  if (n.size() != 4)
    throw Error("expected 4 sizes joined by x, or a description like B=4,H=32,L=4096,d=128,causal");
  const std::string cell = "B=" + std::to_string(n[0]) + ",H=" + std::to_string(n[1]) +
                           ",L=" + std::to_string(n[2]) + ",d=" + std::to_string(n[3]);
  return {parse_cell(cell), parse_cell(cell + ",causal")};
}

}  // namespace

CommandLine::CommandLine(std::span<const Mode> modes)
    : args("bench", "Measures tilegrad on this machine, relative to the machine's peak rates."),
      modes_(modes) {
  declare_common();
  declare_attention();
  declare_serve();
  declare_train();
  args.option("text", "FILE", "UTF-8 text to tokenize, for the mode tokens", settings.text,
              {.shown = "1 MB of generated words"});
  args.option("seconds", "S", "minimum measuring time for each row, in seconds", settings.seconds,
              {.min = 0, .max = 3600});
  args.flag("quick", "do only a quick run of each row, without a meaningful measurement", quick_);
  declare_examples();
}

void CommandLine::declare_common() {
  Names names;
  for (const Mode& m : modes_) names.push_back(m.name);
  args.positional("mode", "what to measure", mode, {.choices = names, .required = true});
  args.option("backend", "NAME", "device to measure: cpu, cuda, or cuda:N for GPU N", backend);
  args.option("dtype", "TYPE",
              "precision of attention, decode, ops, train, lora, generate and serve; tf32 is f32 with "
              "matmuls on a GPU's tensor cores",
              dtype_, {.choices = {"f32", "tf32", "bf16", "f16", "f64"}});
  args.option("threads", "N", "number of CPU threads; a single thread is pinned to a core", threads_,
              {.min = 1, .max = cpu::max_threads, .shown = "TG_THREADS, or all cores"});
  args.option("json", "FILE", "also write the rows to this file", json);
  declare_overwrite(args, overwrite);
  args.option("filter", "TEXT", "measure only rows whose name contains TEXT", settings.filter);
  args.option(
      "shape", "AxBx…",
      "size to measure instead of the mode's default sizes; may be repeated. Mode gemm: MxNxK. Mode ops: "
      "ROWSxCOLUMNS. Mode overhead: NODES. "
      "Mode ranks: ELEMENTS, or as for attention. Mode train: LAYERSxHEADSxWIDTHxCONTEXTxBATCH. Mode lora: "
      "LAYERSxHEADSxWIDTHxCONTEXTxBATCHxVOCABULARYxRANK. Mode tokens: VOCABULARY. Mode generate: CONTEXT. "
      "Mode load: LAYERSxWIDTHxMLPxVOCABULARY. Mode serve: "
      "LAYERSxHEADSxWIDTHxCONTEXTxVOCABULARY or 124M. Modes attention and decode: BxHxLxd (without and with "
      "a "
      "causal mask), or some of "
      "B=,H=,Hk=,L=,T=,d=,dv=,length=,page=,window=,causal,nondeterministic,ragged,v_in_k. "
      "With length=N, N of the T keys are valid, by kv_lengths. With ragged, 1 to T keys are valid. With "
      "page=N, decode measures paged_attn with pages of N keys. "
      "With window=N, N keys before the query's position are visible, and N after it unless causal. "
      "With v_in_k, values are the first columns of keys",
      shapes_, {.shown = "each mode's default sizes"});
}

void CommandLine::declare_attention() {
  args.option(
      "suite", "NAME", "attention: set of cells to measure", suite_,
      {.choices = {"cpu", "gpu", "gpu-nondeterministic", "masks", "few-queries"}, .shown = "by device"});
  args.option("layout", "NAME", "attention: memory layout of q, k and v; projections produce BLHd", layout_,
              {.choices = {"BHLd", "BLHd"}});
  args.option("kernels", "NAME",
              "attention, and decode without pages: kernels to use, or an error if they do not support the "
              "cell; AttentionKernels in ops/flash_attn.h describes them",
              kernels_, {.choices = {"best", "plain", "tensor_cores", "wgmma"}});
  args.flag("compare",
            "also measure other libraries. Modes attention and decode, on a GPU: PyTorch's cuDNN and "
            "FlashAttention-2, and F.linear. "
            "Modes generate and serve: compiled PyTorch, and llama.cpp on the CPU. Mode train: PyTorch in "
            "eager mode, compiled, and with CUDA graphs",
            settings.compare);
  args.flag("traffic",
            "attention: print the bytes of memory traffic by a model and by ncu's counters, instead of rates",
            settings.attention.traffic);
  args.option("once", "NAME", "attention: program of each cell to run once under a profiler, without output",
              settings.attention.once,
              {.choices = {once_forward, once_backward, once_materialised, once_materialised_both},
               .shown = "measure"});
}

void CommandLine::declare_serve() {
  ServeSettings& s = settings.serve;
  args.option("trace", "FILE",
              "serve: trace of requests to replay. Each line has the arrival time in seconds, the number of "
              "prompt tokens and the number of tokens to generate. # starts a comment",
              s.trace, {.shown = "random, from --seed"});
  args.option("requests", "N", "serve: number of requests of a random trace", s.random.requests,
              {.min = 1, .max = 1e6});
  args.option(
      "rate", "R",
      "serve: mean number of requests per second of a random trace (Poisson); 0: all arrive at the start",
      s.random.rate, {.min = 0, .max = 1e9});
  args.option("shared-prefix", "N", "serve: number of tokens of a common prefix of all prompts",
              s.random.shared_prefix, {.min = 0, .max = 1 << 20});
  args.option("seed", "N", "serve: random seed of the trace, its tokens and the weights", s.random.seed,
              {.min = 0, .max = 1 << 30});
  args.option("cache-memory", "SIZE", "serve: memory of each key-value cache, such as 64MiB or 16384tokens",
              cache_memory_, {.shown = "16 full contexts"});
  args.option("page", "N", "serve: number of tokens in a page of the paged cache", s.page_size,
              {.min = 1, .max = 1 << 20});
  args.option("slots", "N", "serve: maximum number of sequences generated in parallel", s.slots,
              {.min = 1, .max = 4096});
  args.flag("in-step", "serve: start each step only when the tokens of the previous step are known",
            s.in_step);
}

void CommandLine::declare_train() {
  TrainSettings& t = settings.train;
  declare_model_options(args, *this, "train: ");
  args.option("vocabulary", "N", "train: number of tokens in the vocabulary", vocabulary_,
              {.min = 1, .max = 1e7});
  args.option("batch", "N", "train: rows of tokens in a batch", t.batch, {.min = 1, .max = 65536});
  args.flag("recompute",
            "train: keep only the input of each block for the backward pass, which recomputes the rest",
            t.recompute);
  args.option("memory-budget", "SIZE",
              "train: limit for the peak memory of a step, as in train --memory-budget", memory_budget_,
              {.shown = "none"});
  args.option("peak", "TFLOPS",
              "train: peak rate in TFLOP/s for the utilization, for example from a data sheet", peak_,
              {.min = 1e-3, .max = 1e9, .shown = "measured"});
  args.option("plot", "FILE.png",
              "also draw a picture of the result. Mode attention: rates. Mode serve: the owner of each part "
              "of the cache in each step. "
              "Mode train: the kernels of a step over time, by family, and the memory in use. Mode ranks: "
              "scaling of the "
              "runs of --rows, without measuring",
              settings.plot, {.shown = "no picture", .suffix = ".png"});
  args.option("rows", "FILE",
              "ranks: --json file of an earlier run to draw with --plot; repeat it for each number of ranks",
              t.rows, {.shown = "none"});
}

void CommandLine::declare_examples() {
  args.example("bench gemm --threads 1", "measure GEMMs on one pinned core");
  args.example("bench attention --json attention.json",
               "measure flash attention on all cores, and write the rows as JSON");
  args.example("bench attention --backend cuda --dtype bf16 --compare --plot attention.png",
               "compare with PyTorch on a GPU, in a table and a bar chart");
  args.example("bench attention --shape B=4,H=32,Hk=8,L=4096,d=128,causal,window=512",
               "measure a user-defined cell");
  args.example("bench attention --backend cuda --dtype bf16 --traffic",
               "print the memory traffic of attention");
  args.example("bench decode --threads 1",
               "measure one query with many keys, relative to the rate of reading memory");
  args.example("bench decode --backend cuda --dtype bf16 --compare",
               "compare attention of one query and small-batch GEMMs with PyTorch's");
  args.example("bench serve --requests 500 --plot pages.png",
               "serve many sequences, in a contiguous and in a paged cache");
  args.example("bench load",
               "load a Hugging Face folder into bf16 weights, and compare with the rate of reading its file");
  args.example(
      "bench train --architecture llama --layers 12 --heads 12 --width 768 --context 1024 --vocabulary 32000 "
      "--batch 8 --backend cuda --dtype bf16 --compare --plot step.png",
      "compare a model's training step with PyTorch's, and show its profile");
  args.example("bench lora --backend cuda --dtype bf16",
               "compare two ways to fine-tune GPT-2: with LoRA, and all parameters");
  args.example("launch -n 2 bench ranks --backend cuda --dtype bf16", "measure the collectives on two GPUs");
  args.example(
      "launch -n 2 bench ranks --backend cuda --dtype bf16 --layers 12 --heads 12 --width 768 --context 1024 "
      "--vocabulary 50304 --batch 32",
      "compare a training step on two GPUs and on one");
  args.example("bench ranks --rows on1.json --rows on2.json --rows on4.json --plot scaling.png",
               "draw the scaling of runs measured by launch -n 1, 2 and 4 with bench ranks --json");
  args.example("bench ops --filter softmax --shape 4096x4096", "measure one op with one shape");
}

const Mode& CommandLine::chosen() const {
  return *std::ranges::find(modes_, mode, &Mode::name);
}

std::vector<std::string> CommandLine::train_options() {
  Names names = names_of_model_options(*this);
  names.insert(std::ranges::find(names, "vocabulary") + 1, {"batch", "recompute", "memory-budget", "peak"});
  return names;
}

std::string CommandLine::first_given(std::span<const std::string> names) const {
  const auto first = std::ranges::find_if(names, [&](const std::string& name) { return args.given(name); });
  return first == names.end() ? "" : "--" + *first;
}

std::string CommandLine::take() {
  if (quick_) {
    settings.seconds = 0;
    settings.copy_bytes = 1 << 20;
    if (!args.given("requests")) settings.serve.random.requests = 8;
  }
  settings.device = Device::parse(backend);
  settings.tf32 = dtype_ == "tf32";
  for (DType t : {f64, bf16, f16})
    if (name_of(t) == dtype_) settings.dtype = t;
  const std::pair<Names, Names> options_of_modes[] = {
      {{"attention", "decode", "generate", "serve", "train"}, {"compare"}},
      {{"attention", "decode"}, {"kernels"}},
      {{"attention"}, {"suite", "layout", "traffic", "once"}},
      {{"serve"},
       {"trace", "requests", "rate", "shared-prefix", "seed", "cache-memory", "page", "slots", "in-step"}},
      {{"attention", "serve", "train", "ranks"}, {"plot"}},
      {{"train", "ranks"}, train_options()},
      {{"ranks"}, {"rows"}}};
  for (const auto& [its_modes, options] : options_of_modes)
    if (const std::string option = first_given(options); !option.empty() && !is_mode(its_modes))
      return option + " requires " + listed(its_modes);
  for (const char* name : {"requests", "rate"})
    if (args.given(name) && args.given("trace"))
      return "--" + std::string(name) + " and --trace exclude each other";
  std::string mistake = take_attention();
  if (mistake.empty() && args.given("cache-memory"))
    mistake = parse_cache_memory(cache_memory_, settings.serve.cache);
  if (mistake.empty() && (mode == "train" || mode == "ranks")) mistake = take_train();
  if (mistake.empty()) mistake = take_shapes();
  return mistake.empty() && settings.train.rows.empty() ? take_threads() : mistake;
}

std::string CommandLine::take_threads() {
  const auto cores = static_cast<std::int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  if (!settings.on_cpu()) return "";
  if (threads_ > cores)
    return "--threads got " + std::to_string(threads_) + ", expected at most " + std::to_string(cores) +
           ", the number of cores";
  settings.threads = threads_ > 0 ? static_cast<int>(threads_) : cpu::default_threads();
  return "";
}

std::string CommandLine::take_shapes() {
  if (mode == "attention" || mode == "decode") return "";
  for (const std::string& s : shapes_) {
    if (mode == "ranks" && is_cell(s)) continue;
    settings.shapes.push_back(parse_shape(mode == "serve" && s == "124M" ? "12x12x768x1024x50304" : s));
    if (settings.shapes.back().size() != chosen().sizes)
      return "--shape got '" + s + "', expected " + std::to_string(chosen().sizes) + " sizes joined by x";
  }
  return "";
}

std::string CommandLine::take_attention() {
  AttentionSettings& a = settings.attention;
  for (const AttentionKernels k :
       {AttentionKernels::plain, AttentionKernels::tensor_cores, AttentionKernels::wgmma})
    if (kernels_ == name_of(k)) a.kernels = k;
  a.by_token = layout_ == "BLHd";
  const bool on_cpu = settings.on_cpu();
  if (mode == "decode") return take_cells(on_cpu ? "decode" : "gpu-decode");
  if (mode == "ranks") {
    Names cells = shapes_;
    std::erase_if(cells, [](const std::string& s) { return !is_cell(s); });
    if (std::string mistake = add_cells(cells); !mistake.empty()) return mistake;
    for (const AttentionCell& c : a.cells)
      if (c.L != c.T || c.length > 0 || c.page > 0 || c.ragged || c.v_in_k)
        return "--shape got '" + c.words() +
               "': ring attention requires T = L and does not support length=, page=, ragged and v_in_k";
  }
  if (mode != "attention") return "";
  if (args.given("suite") && !shapes_.empty()) return "--suite and --shape exclude each other";
  const std::string rates = first_given(Names{"compare", "plot", "json"});
  if (!rates.empty() && (a.traffic || !a.once.empty()))
    return rates + " requires rates, which --traffic and --once do not measure";
  if (a.traffic && !a.once.empty()) return "--traffic and --once exclude each other";
  for (const std::string& shape : shapes_)
    if (shape.find("page=") != std::string::npos) return "page= requires the mode decode";
  return take_cells(!suite_.empty() ? suite_ : on_cpu ? "cpu" : "gpu");
}

std::string CommandLine::take_cells(const std::string& name) {
  AttentionSettings& a = settings.attention;
  a.whole_suite = shapes_.empty() && suite_.empty();
  if (shapes_.empty()) a.cells = attention_suite(name);
  return add_cells(shapes_);
}

std::string CommandLine::add_cells(std::span<const std::string> shapes) {
  for (const std::string& shape : shapes) {
    try {
      for (const AttentionCell& c : cells_of(shape)) settings.attention.cells.push_back(c);
    } catch (const Error& e) {
      return "--shape got '" + shape + "': " + e.what();
    }
  }
  return "";
}

std::string CommandLine::take_model_shape(const std::string& report) {
  if (shapes_.empty()) return "";
  if (shapes_.size() > 1)
    return "--shape got " + std::to_string(shapes_.size()) + " sizes, expected one with " + report;
  const Sizes sizes = parse_shape(shapes_[0]);
  const std::pair<const char*, std::int64_t*> options[] = {{"layers", &model.layers},
                                                           {"heads", &model.heads},
                                                           {"width", &model.width},
                                                           {"context", &model.context},
                                                           {"batch", &settings.train.batch}};
  if (sizes.size() != std::size(options))
    return "--shape got '" + shapes_[0] + "', expected 5 sizes joined by x";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto& [name, size] = options[i];
    if (args.given(name)) return "--shape and --" + std::string(name) + " exclude each other";
    *size = sizes[i];
  }
  return "";
}

std::string CommandLine::take_train() {
  Names options = train_options();
  if (mode == "ranks" && args.given("plot") != args.given("rows"))
    return "the mode ranks requires --rows FILE and --plot FILE together";
  if (args.given("rows")) {
    options.insert(options.end(), {"shape", "filter", "json"});
    const std::string measuring = first_given(options);
    return measuring.empty() ? "" : measuring + " and --rows, which measures nothing, exclude each other";
  }
  if (mode == "train") options.insert(options.end(), {"compare", "plot"});
  const std::string report = first_given(options);
  if (report.empty()) return "";
  if (args.given("filter")) return "--filter and " + report + " exclude each other";
  if (mode == "ranks" && !shapes_.empty()) return "--shape and " + report + " exclude each other";
  if (std::string mistake = take_model_shape(report); !mistake.empty()) return mistake;
  if (settings.compare && model.dropout > 0)
    return "--compare and --dropout exclude each other: PyTorch draws different random numbers";
  if (!args.given("init-std")) model.std = 0.02 * std::sqrt(768.0 / static_cast<double>(model.width));
  std::string mistake = take_model(args, *this);
  if (mistake.empty()) mistake = take_bytes("memory-budget", memory_budget_, settings.train.budget);
  model.vocabulary = vocabulary_;
  settings.train.model = model;
  settings.train.peak = peak_ * 1e12;
  return mistake;
}

}  // namespace tg::bench
