// What decoding consists of, each alone: attention of few queries with many keys, and products of few rows,
// as the rate at which keys and values, or weights, are read. On the CPU it is a share of the rate at which
// the same threads just read memory, with the multiply-adds as a share of theirs: the nearer of the two is
// what bounds it. On a GPU caches are cold, CUDA graphs of several calls are timed, and the rate is a share
// of the rate of copying. And what CompileOptions::rows_alone costs a whole model.
#include <cmath>
#include <optional>

#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/ops/ops.h>
#include "tools/bench/attention_programs.h"
#include "tools/bench/cold_runs.h"
#include "tools/bench/machine.h"
#include "tools/bench/modes.h"
#include "tools/bench/other_libraries.h"

namespace tg::bench {

namespace {

// Of the keys and values that some query sees.
double bytes_of(const AttentionCell& c, DType dtype) {
  const std::int64_t row = c.v_in_k ? c.d : c.d + c.dv;
  std::int64_t keys = 0;
  for (const AttentionCell& e : c.entries()) keys += e.B * (keys_seen(e, e.L - 1).to - keys_seen(e, 0).from);
  return static_cast<double>(c.Hk * keys * row) * static_cast<double>(size_of(dtype));
}

// x [m, k] times the transpose of weights [n, k]: a Linear layer on the tokens of m texts.
struct ThinProduct {
  std::int64_t m, n, k;
  bool rows_alone = false;  // as in CompileOptions

  double flops() const { return 2. * static_cast<double>(m * n * k); }
  double bytes(DType dtype) const {
    return static_cast<double>(n * k + m * (n + k)) * static_cast<double>(size_of(dtype));
  }
};

// A program of several such products, of the same x with weights of their own each.
struct ThinProducts {
  Graph g;
  std::vector<Tensor> weights, out;
  Program program;

  ThinProducts(const ThinProduct& p, int calls, const Settings& settings)
      : program([&] {
          const Tensor x = g.input("x", {p.m, p.k}, settings.dtype);
          for (int n = 0; n < calls; ++n) {
            weights.push_back(g.input("w" + std::to_string(n), {p.n, p.k}, settings.dtype));
            out.push_back(matmul(x, weights.back().transpose(0, 1)));
          }
          CompileOptions options = options_of(settings, settings.threads);
          options.rows_alone = p.rows_alone;
          Program made = compile(g, out, options);
          made.feed({x, normal_array(x.shape(), x.dtype(), 1)});
          const Array numbers = normal_array(weights[0].shape(), settings.dtype, 2);
          for (const Tensor& w : weights) made.feed({w, numbers});
          return made;
        }()) {}
};

// The logits that follow `texts` prompts of `length` tokens each, by a GPT without a cache.
struct Prompts {
  const char* name;
  std::int64_t texts, length;
  bool rows_alone = false;

  nn::ModelConfig config(bool is_large) const {
    nn::ModelConfig c{.architecture = nn::Gpt{.activation = "gelu_tanh"},
                      .vocabulary = 50304,
                      .context = 1024,
                      .layers = 12,
                      .heads = 12,
                      .width = 768,
                      .bias = true};
    if (!is_large) c.vocabulary = 65, c.layers = 4, c.heads = 4, c.width = 128;
    return c;
  }
};

// Rates of the machine change from moment to moment, so all three are measured in turns: the best of each.
struct DecodeRates {
  double seconds = std::numeric_limits<double>::infinity(), reading = 0, peak = 0;
  DecodeRates(Program& program, Reading& memory, const Settings& settings) {
    constexpr int turns = 10;
    best_seconds(settings.seconds, [&] {
      reading = std::max(reading, memory.gbytes());
      peak = std::max(peak, peak_now(settings.dtype == f64 ? f64 : f32, settings.threads));
      seconds = std::min(seconds, best_seconds(settings.seconds / turns, [&] { program.run(); }));
    });
  }
};

class DecodeBench {
 public:
  DecodeBench(const Settings& settings, const Machine& machine, Report& report)
      : settings_(settings), machine_(machine), report_(report) {
    if (settings.device.kind == Device::cpu_kind)
      memory_.emplace(settings);
    else
      cold_.emplace(settings);
    if (!settings.compare) return;
    torch_.emplace(settings.device);
    std::printf("%s%s\n", torch_->ready() ? "" : "no PyTorch to compare with: ", torch_->about().c_str());
  }

  void run(const AttentionCell& c) {
    row_.name = c.name() + " decode", row_.shape = c.shape();
    if (!report_.selects(row_.name)) return;
    bytes_ = bytes_of(c, settings_.dtype);
    const int calls = cold_ ? cold_->calls(bytes_) : 1;
    {
      RecordedAttention r(c, settings_, false, calls);
      Program program = compile(r.g, r.outputs, options_of(settings_, settings_.threads));
      r.feed(program);
      if (cold_)
        measure_on_gpu(cold_->median_in_graph(program, calls, r.out.lse), c);
      else
        measure_on_cpu(program, c.flops(false));
    }
    if (!torch_ || c.page > 0) return;
    const TorchProcess::Seconds theirs = torch_->time_in_graph(c, calls, settings_);
    add(", cuDNN", theirs.cudnn);
    add(", FA2", theirs.flash);
  }

  void run(const ThinProduct& p) {
    const std::int64_t sizes[] = {p.m, p.n, p.k};
    row_.name = p.rows_alone ? "thin product, rows alone" : "thin product", row_.shape = joined(sizes);
    if (!report_.selects(row_.name)) return;
    bytes_ = p.bytes(settings_.dtype);
    const int calls = cold_ ? cold_->calls(bytes_) : 1;
    {
      ThinProducts products(p, calls, settings_);
      if (cold_)
        add_copied(cold_->median_in_graph(products.program, calls, products.out.back()));
      else
        measure_on_cpu(products.program, p.flops());
    }
    if (torch_ && !p.rows_alone) add(", F.linear", torch_->time_linear(p.m, p.n, p.k, calls, settings_));
  }

  void run(const Prompts& p) {
    const nn::ModelConfig config = p.config(cold_.has_value());
    const std::int64_t sizes[] = {p.texts, p.length, config.layers, config.width};
    row_.name = std::string(p.name) + (p.rows_alone ? ", rows alone" : ""), row_.shape = joined(sizes);
    if (!report_.selects(row_.name)) return;
    nn::Params params(1, settings_.dtype, settings_.device);
    const nn::Model model(params, config);
    Graph g;
    const Tensor tokens = g.input("tokens", {p.texts, p.length}, i32);
    const nn::Autocast autocast(g, nn::precision_named(settings_.dtype_name()));
    const Tensor logits = model.head(slice(model.features(tokens), 1, p.length - 1, p.length));
    CompileOptions options = options_of(settings_, settings_.threads);
    options.rows_alone = p.rows_alone;
    Program program = compile(g, {logits}, options);
    program.feed({tokens, Array(tokens.shape(), i32)});
    const double seconds = cold_ ? cold_->median_in_graph(program, 1, logits)
                                 : best_seconds(settings_.seconds, [&] { program.run(); });
    report_.add({.name = row_.name,
                 .shape = row_.shape,
                 .dtype = settings_.dtype_name(),
                 .pass = "forward",
                 .threads = settings_.threads,
                 .ms = seconds * 1e3,
                 .rate = static_cast<double>(p.texts * p.length) / seconds,
                 .unit = "tokens/s"});
  }

 private:
  void add_copied(double seconds) {
    of_ = "copy", best_rate_ = machine_.copy;
    add("", seconds);
  }
  // With its products where they may be what bounds it: of 64 rows or more, a tile of wgmma.
  void measure_on_gpu(double seconds, const AttentionCell& c) {
    add_copied(seconds);
    const double rate = c.flops(false) * 1e-9 / seconds;
    if (c.H / c.Hk * c.L >= 64)
      add_row(", products", seconds, rate, "GFLOP/s", rate / product_peak(machine_, settings_.dtype),
              "product");
  }
  void measure_on_cpu(Program& program, double flops) {
    const DecodeRates best(program, *memory_, settings_);
    of_ = "reading", best_rate_ = best.reading;
    add("", best.seconds);
    const double rate = flops * 1e-9 / best.seconds;
    add_row(", products", best.seconds, rate, "GFLOP/s", rate / best.peak, "multiply-add");
  }

  // The rate of reading; nothing if it was not measured.
  void add(const char* who, double seconds) {
    const double rate = bytes_ * 1e-9 / seconds;
    if (!std::isnan(seconds)) add_row(who, seconds, rate, "GB/s", rate / best_rate_, of_);
  }
  void add_row(const char* suffix, double seconds, double rate, const char* unit, double share,
               const char* of) {
    report_.add({.name = row_.name + suffix,
                 .shape = row_.shape,
                 .dtype = settings_.dtype_name(),
                 .pass = "forward",
                 .threads = settings_.threads,
                 .ms = seconds * 1e3,
                 .rate = rate,
                 .unit = unit,
                 .share = share,
                 .of = of});
  }

  const Settings& settings_;
  const Machine& machine_;
  Report& report_;
  std::optional<Reading> memory_;  // on the CPU
  std::optional<ColdRuns> cold_;   // on a GPU
  std::optional<TorchProcess> torch_;
  Row row_;               // name and shape of what is measured
  double bytes_ = 0;      // that it reads and writes
  const char* of_ = "";   // what its rate is a share of
  double best_rate_ = 0;  // GB/s of that
};

}  // namespace

void run_decode(const Settings& settings, const Machine& machine, Report& report) {
  DecodeBench bench(settings, machine, report);
  for (const AttentionCell& c : settings.attention.cells) bench.run(c);
  if (!settings.attention.whole_suite) return;
  struct Weights {
    std::int64_t n, k;
  };
  std::vector<Weights> weights = {{768, 768},  {2304, 768},  {3072, 768},
                                  {768, 3072}, {2048, 2048}, {4096, 4096}};
  if (settings.seconds == 0) weights = {{128, 128}};  // a quick run measures nothing
  for (const Weights& w : weights)
    for (const std::int64_t m : {1, 4, 16, 64, 128, 256})
      for (const bool rows_alone : {false, true}) bench.run(ThinProduct{m, w.n, w.k, rows_alone});
  for (const Prompts& p : {Prompts{"64 tokens of 64 texts", 64, 1}, {"a prompt of 256 tokens", 1, 256}})
    for (const bool rows_alone : {false, true}) bench.run(Prompts{p.name, p.texts, p.length, rows_alone});
}

}  // namespace tg::bench
