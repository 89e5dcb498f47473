// Measures the parts of decoding separately: attention of few queries with many keys, and GEMMs with few
// rows. The result is the rate at which they read keys and values, or weights. On the CPU, the rate is
// compared with the rate at which the same threads only read memory. The FLOP rate is compared with the
// multiply-add rate. The larger of the two shares shows the bottleneck. On a GPU, CUDA graphs of several
// calls are timed with cold caches, and the rate is compared with the copy rate. The mode also measures the
// cost of CompileOptions::batch_invariant for a whole model.
#include <cmath>
#include <optional>

#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/ops/ops.h>
#include "tools/bench/attention_programs.h"
#include "tools/bench/other_libraries.h"

namespace tg::bench {

namespace {

// The bytes of the keys and values that at least one query sees.
double bytes_read(const AttentionCell& c, DType dtype) {
  const std::int64_t row = c.v_in_k ? c.d : c.d + c.dv;
  std::int64_t keys = 0;
  for (const AttentionCell& e : c.entries()) keys += e.B * (keys_seen(e, e.L - 1).to - keys_seen(e, 0).from);
  return static_cast<double>(c.Hk * keys * row) * static_cast<double>(size_of(dtype));
}

class DecodeBench {
 public:
  explicit DecodeBench(Report& report) : report_(report), settings_(report.settings) {
    if (settings_.on_cpu())
      memory_.emplace(settings_);
    else
      cold_.emplace(settings_);
    if (settings_.compare) torch_.emplace(settings_.device);
  }

  void run(const AttentionCell& c) {
    if (!begin(c.name() + " decode", c.shape(), bytes_read(c, settings_.dtype))) return;
    {
      RecordedAttention r(c, settings_, false, calls_);
      Program program = r.program(settings_.threads);
      // On a GPU, the FLOP rate is added if it may be the bottleneck: for at least 64 rows, which is the size
      // of a wgmma tile.
      measure(program, r.out.lse, c.flops(false), c.H / c.Hk * c.L >= 64);
    }
    if (!torch_ || c.page > 0) return;
    const TorchAttention::Seconds theirs = torch_->time(c, "graph", calls_, settings_);
    add(", cuDNN", theirs.cudnn);
    add(", FA2", theirs.flash);
  }

  // Measures x [m, k] times the transpose of weights [n, k]. This is a Linear layer on m sequences with one
  // token each. A program may contain several calls with the same x and separate weights.
  void run(std::int64_t m, std::int64_t n, std::int64_t k, bool batch_invariant) {
    const double bytes =
        static_cast<double>(n * k + m * (n + k)) * static_cast<double>(size_of(settings_.dtype));
    if (!begin(batch_invariant ? "small-batch GEMM, batch-invariant" : "small-batch GEMM", joined({m, n, k}),
               bytes))
      return;
    {
      Graph g;
      const Tensor x = g.input("x", {m, k}, settings_.dtype);
      std::vector<Tensor> weights, out;
      for (int call = 0; call < calls_; ++call) {
        weights.push_back(g.input("w" + std::to_string(call), {n, k}, settings_.dtype));
        out.push_back(matmul(x, weights.back().transpose(0, 1)));
      }
      Program program = compiled(g, out, batch_invariant);
      program.feed({x, normal_array(x.shape(), x.dtype(), 1)});
      const Array numbers = normal_array(weights[0].shape(), settings_.dtype, 2);
      for (const Tensor& w : weights) program.feed({w, numbers});
      measure(program, out.back(), 2. * static_cast<double>(m * n * k), false);
    }
    if (torch_ && !batch_invariant) add(", F.linear", torch_->time_linear(m, n, k, calls_, settings_));
  }

  // Measures the logits of the next token after `sequences` prompts of `length` tokens, for a GPT without a
  // cache.
  void run(const std::string& name, std::int64_t sequences, std::int64_t length, bool batch_invariant) {
    nn::ModelConfig config =
        config_of(nn::Gpt{.activation = "gelu_tanh"},
                  settings_.on_cpu() ? Sizes{4, 4, 128, 1024, 65} : Sizes{12, 12, 768, 1024, 50304});
    config.bias = true;
    Row row = report_.row(name + (batch_invariant ? ", batch-invariant" : ""),
                          joined({sequences, length, config.layers, config.width}), "forward");
    if (!report_.selects(row.name)) return;
    nn::Params params(1, settings_.dtype, settings_.device);
    const nn::Model model(params, config);
    Graph g;
    const Tensor tokens = g.input("tokens", {sequences, length}, i32);
    const nn::Autocast autocast(g, settings_.precision());
    const Tensor logits = model.head(slice(model.features(tokens), 1, length - 1, length));
    Program program = compiled(g, {logits}, batch_invariant);
    program.feed({tokens, Array(tokens.shape(), i32)});
    const double seconds = cold_ ? cold_->median_in_graph(program, 1, logits)
                                 : best_seconds(settings_.seconds, [&] { program.run(); });
    report_.add(row.time(seconds).at(static_cast<double>(sequences * length) / seconds, "tokens/s"));
  }

 private:
  // Starts a row. Returns whether it is selected for measurement.
  bool begin(const std::string& name, const std::string& shape, double bytes) {
    row_ = report_.row(name, shape, "forward");
    bytes_ = bytes;
    calls_ = cold_ ? cold_->calls(bytes) : 1;
    return report_.selects(name);
  }

  Program compiled(Graph& g, const std::vector<Tensor>& out, bool batch_invariant) const {
    CompileOptions options = settings_.compile_options();
    options.batch_invariant = batch_invariant;
    return compile(g, out, options);
  }

  void measure(Program& program, const Tensor& output, double flops, bool products_on_gpu) {
    if (cold_) {
      of_ = "copy", best_rate_ = report_.machine.copy;
      const double seconds = cold_->median_in_graph(program, calls_, output);
      add("", seconds);
      if (products_on_gpu)
        add_products(flops, seconds, report_.machine.product_peak(settings_.dtype), "product");
      return;
    }
    // The rates of a machine vary over time. Therefore all three rates are measured alternately, and the best
    // value of each is used.
    constexpr int turns = 10;
    double seconds = std::numeric_limits<double>::infinity(), peak = 0;
    of_ = "reading", best_rate_ = 0;
    repeat(settings_.seconds, [&] {
      best_rate_ = std::max(best_rate_, memory_->gbytes());
      peak = std::max(peak, peak_now(settings_.dtype == f64 ? f64 : f32, settings_.threads));
      seconds = std::min(seconds, best_seconds(settings_.seconds / turns, [&] { program.run(); }));
    });
    add("", seconds);
    add_products(flops, seconds, peak, "multiply-add");
  }

  // Adds a row with the read rate if it was measured (not NaN).
  void add(const char* who, double seconds) {
    const double rate = bytes_ * 1e-9 / seconds;
    if (!std::isnan(seconds)) add_row(who, seconds, rate, "GB/s", rate / best_rate_, of_);
  }
  void add_products(double flops, double seconds, double peak, const char* of) {
    const double rate = flops * 1e-9 / seconds;
    add_row(", products", seconds, rate, "GFLOP/s", rate / peak, of);
  }
  void add_row(const char* suffix, double seconds, double rate, const char* unit, double share,
               const char* of) {
    Row row = row_;
    row.name += suffix;
    report_.add(row.time(seconds).at(rate, unit).part(share, of));
  }

  Report& report_;
  const Settings& settings_;
  std::optional<Reading> memory_;  // on the CPU
  std::optional<ColdRuns> cold_;   // on a GPU
  std::optional<TorchAttention> torch_;
  Row row_;               // name and shape of the current row
  double bytes_ = 0;      // read and written by a call
  int calls_ = 1;         // per program
  const char* of_ = "";   // reference of the rate's share
  double best_rate_ = 0;  // GB/s of the reference
};

}  // namespace

void run_decode(Report& report) {
  const Settings& settings = report.settings;
  DecodeBench bench(report);
  for (const AttentionCell& c : settings.attention.cells) bench.run(c);
  if (!settings.attention.whole_suite) return;
  std::vector<std::pair<std::int64_t, std::int64_t>> weights = {{768, 768},  {2304, 768},  {3072, 768},
                                                                {768, 3072}, {2048, 2048}, {4096, 4096}};
  if (settings.is_quick()) weights = {{128, 128}};
  for (const auto& [n, k] : weights)
    for (const std::int64_t m : {1, 4, 16, 64, 128, 256})
      for (const bool batch_invariant : {false, true}) bench.run(m, n, k, batch_invariant);
  for (const bool batch_invariant : {false, true})
    bench.run("64 tokens of 64 sequences", 64, 1, batch_invariant);
  for (const bool batch_invariant : {false, true})
    bench.run("a prompt of 256 tokens", 1, 256, batch_invariant);
}

}  // namespace tg::bench
