// Measures the FLOP rate of GEMMs (2·m·n·k FLOPs each), relative to the machine's multiply-add rate. "NT" is
// A·Bᵀ with B stored as [n, k]; the transpose is a view of an input.
#include <map>
#include <tuple>

#include <tilegrad/ops/ops.h>
#include "tools/bench/measure.h"
#include "tools/bench/report.h"

namespace tg::bench {

namespace {

constexpr const char* forms[] = {"NN", "NT", "TN"};

struct Product {
  std::int64_t m, n, k;
  std::string form;  // N or T for each operand
  DType dtype;

  std::string name() const { return (dtype == f32 ? "sgemm " : dtype == f64 ? "dgemm " : "gemm ") + form; }
  std::string shape() const { return joined({m, n, k}); }
  double gflop() const {
    return 2e-9 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};

Row row_of(const Product& p, const std::string& suffix, int threads, double seconds) {
  Row row{p.name() + suffix, p.shape(), std::string(name_of(p.dtype)), "forward", threads};
  return row.time(seconds);
}

Timing timing(const Product& p, int threads, const Report& report) {
  Graph g;
  std::vector<Tensor> inputs;
  const auto operand = [&](std::int64_t rows, std::int64_t columns, char form) {
    const bool transposed = form == 'T';
    const Tensor& x =
        inputs.emplace_back(g.input("x", transposed ? Shape{columns, rows} : Shape{rows, columns}, p.dtype));
    return transposed ? x.transpose(0, 1) : x;
  };
  const Tensor a = operand(p.m, p.k, p.form[0]), b = operand(p.k, p.n, p.form[1]);
  Program program = compile(g, {matmul(a, b)}, report.settings.compile_options(threads));
  for (const Tensor& x : inputs) program.feed({x, random_array(x.shape(), p.dtype)});
  return run_and_peak(program, p.dtype, threads, report.settings, report.machine);
}

std::vector<Product> products(const Settings& settings) {
  std::vector<Product> list;
  for (const Sizes& s : settings.shapes)
    for (DType t : {f32, f64, bf16})
      for (const char* form : forms) list.push_back({s[0], s[1], s[2], form, t});
  if (!list.empty()) return list;
  for (DType t : {f32, bf16}) {
    if (t == bf16) list.push_back({1024, 1024, 1024, "NN", f64});
    for (std::int64_t n : {512, 1024, 2048})
      for (const char* form : forms) list.push_back({n, n, n, form, t});
  }
  // The small character-level GPT: 12×64 rows of width 128. The GEMMs of the forward pass precede the GEMMs
  // for the gradients of rows and weights.
  for (std::int64_t n : {384, 128, 512}) {
    list.push_back({768, n, 128, "NN", f32});
    list.push_back({768, 128, n, "NT", f32});
    list.push_back({128, n, 768, "TN", f32});
  }
  return list;
}

// The rates of the f32 GEMMs measured so far, by shape, form and number of threads.
using Rates = std::map<std::tuple<std::string, std::string, int>, double>;

// Measures and reports one GEMM. A bf16 GEMM is compared with the same GEMM in f32 if that was measured
// before.
Timing measure_product(const Product& p, int threads, Report& report, Rates& sgemm_rates) {
  const Timing t = timing(p, threads, report);
  const double rate = p.gflop() / t.seconds;
  const auto key = std::tuple(p.shape(), p.form, threads);
  if (p.dtype == f32) sgemm_rates[key] = rate;
  const auto found = sgemm_rates.find(key);
  Row row = row_of(p, "", threads, t.seconds).products(rate, t.peak, report.machine);
  if (p.dtype == bf16 && found != sgemm_rates.end()) row.share_sgemm = rate / found->second;
  report.add(row);
  return t;
}

}  // namespace

double sgemm(Report& report) {
  const std::int64_t size = report.settings.is_quick() ? 128 : 1024;
  const Product p{size, size, size, "NN", f32};
  Rates rates;
  const Timing t = measure_product(p, report.settings.threads, report, rates);
  return p.gflop() / t.seconds / t.peak;
}

void run_gemm(Report& report) {
  const int threads = report.settings.threads;
  Rates rates;
  for (const Product& p : products(report.settings)) {
    if (!report.selects(p.name())) continue;
    const Timing all = measure_product(p, threads, report, rates);
    if (threads == 1 || p.form != "NN") continue;
    const double gain = measure_product(p, 1, report, rates).seconds / all.seconds;
    report.add(row_of(p, ", all / one", threads, all.seconds).at(gain, "×").part(gain / threads, "threads"));
  }
}

}  // namespace tg::bench
