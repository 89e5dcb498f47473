// Matrix products: 2·m·n·k FLOPs, as a share of the machine's multiply-add rate. "NT" is A·Bᵀ with B stored
// [n, k]: the transpose is a view of an input.
#include <map>
#include <tuple>

#include <tilegrad/ops/ops.h>
#include "tools/bench/modes.h"

namespace tg::bench {

namespace {

struct Product {
  std::int64_t m, n, k;
  std::string form;  // N or T for each operand
  DType dtype;

  std::string name() const { return (dtype == f32 ? "sgemm " : dtype == f64 ? "dgemm " : "gemm ") + form; }
  std::string shape() const {
    const std::int64_t sizes[] = {m, n, k};
    return joined(sizes);
  }
};

double gflop(const Product& p) {
  return 2e-9 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
}

Timing timing(const Product& p, int threads, const Settings& settings, const Machine& machine) {
  Graph g;
  const auto operand = [&](std::int64_t rows, std::int64_t columns, bool transposed) {
    return transposed ? g.input("x", {columns, rows}, p.dtype) : g.input("x", {rows, columns}, p.dtype);
  };
  const Tensor a = operand(p.m, p.k, p.form[0] == 'T'), b = operand(p.k, p.n, p.form[1] == 'T');
  const auto as_used = [](const Tensor& x, char form) { return form == 'T' ? x.transpose(0, 1) : x; };
  Program program =
      compile(g, {matmul(as_used(a, p.form[0]), as_used(b, p.form[1]))}, options_of(settings, threads));
  program.feed({a, random_array(a.shape(), p.dtype)});
  program.feed({b, random_array(b.shape(), p.dtype)});
  return run_and_peak(program, p.dtype, threads, settings, machine);
}

std::vector<Product> products(const Settings& settings) {
  std::vector<Product> list;
  if (!settings.shapes.empty()) {
    for (const auto& s : settings.shapes)
      for (DType t : {f32, f64, bf16})
        for (const char* form : {"NN", "NT", "TN"}) list.push_back({s[0], s[1], s[2], form, t});
    return list;
  }
  for (std::int64_t n : {512, 1024, 2048})
    for (const char* form : {"NN", "NT", "TN"}) list.push_back({n, n, n, form, f32});
  list.push_back({1024, 1024, 1024, "NN", f64});
  for (std::int64_t n : {512, 1024, 2048})
    for (const char* form : {"NN", "NT", "TN"}) list.push_back({n, n, n, form, bf16});
  // The small character GPT: 12×64 rows of width 128; forward, then the gradients of rows and weights.
  for (std::int64_t n : {384, 128, 512}) {
    list.push_back({768, n, 128, "NN", f32});
    list.push_back({768, 128, n, "NT", f32});
    list.push_back({128, n, 768, "TN", f32});
  }
  return list;
}

// Rates of products in f32 so far, by shape, form and threads.
using Rates = std::map<std::tuple<std::string, std::string, int>, double>;

// Measures and reports one product; one in bf16 is compared with the same in f32 if that was measured before.
Timing measure(const Product& p, int threads, const Settings& settings, const Machine& machine,
               Report& report, Rates& sgemm_rates) {
  const Timing t = timing(p, threads, settings, machine);
  const double rate = gflop(p) / t.seconds;
  const auto key = std::tuple(p.shape(), p.form, threads);
  if (p.dtype == f32) sgemm_rates[key] = rate;
  const auto found = sgemm_rates.find(key);
  const bool beside = p.dtype == bf16 && found != sgemm_rates.end();
  Row row{p.name(), p.shape(), std::string(name_of(p.dtype)), "forward", threads, t.seconds * 1e3};
  set_rate(row, rate, t.peak, machine);
  if (beside) row.share_sgemm = rate / found->second;
  report.add(row);
  return t;
}

}  // namespace

double sgemm(const Settings& settings, int threads, const Machine& machine, Report& report) {
  const std::int64_t size = settings.seconds > 0 ? 1024 : 128;  // a quick run measures nothing
  const Product p{size, size, size, "NN", f32};
  Rates rates;
  const Timing t = measure(p, threads, settings, machine, report, rates);
  return gflop(p) / t.seconds / t.peak;
}

void run_gemm(const Settings& settings, const Machine& machine, Report& report) {
  Rates rates;
  for (const Product& p : products(settings)) {
    if (!report.selects(p.name())) continue;
    const Timing all = measure(p, settings.threads, settings, machine, report, rates);
    if (settings.threads == 1 || p.form != "NN") continue;
    const double gain = measure(p, 1, settings, machine, report, rates).seconds / all.seconds;
    report.add({p.name() + ", all / one", p.shape(), std::string(name_of(p.dtype)), "forward",
                settings.threads, all.seconds * 1e3, gain, "×", gain / settings.threads, "threads"});
  }
}

}  // namespace tg::bench
