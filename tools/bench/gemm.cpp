// Matrix products: 2·m·n·k FLOPs, as a share of the machine's multiply-add rate. "NT" is A·Bᵀ with B stored
// [n, k]: the transpose is a view of an input.
#include "ops/ops.h"
#include "tools/bench/modes.h"

namespace tg::bench {

namespace {

struct Product {
  std::int64_t m, n, k;
  std::string form;  // N or T for each operand
  DType dtype;
};

double gflop(const Product& p) {
  return 2e-9 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
}

Timing timing(const Product& p, int threads, const Settings& settings) {
  Graph g;
  const auto operand = [&](std::int64_t rows, std::int64_t columns, bool transposed) {
    return transposed ? g.input("x", {columns, rows}, p.dtype) : g.input("x", {rows, columns}, p.dtype);
  };
  const Tensor a = operand(p.m, p.k, p.form[0] == 'T'), b = operand(p.k, p.n, p.form[1] == 'T');
  const auto as_used = [](const Tensor& x, char form) { return form == 'T' ? x.transpose(0, 1) : x; };
  Program program = compile(g, {matmul(as_used(a, p.form[0]), as_used(b, p.form[1]))}, {.threads = threads});
  program.feed({a, random_array(a.shape(), p.dtype)});
  program.feed({b, random_array(b.shape(), p.dtype)});
  return best_run_and_peak(program, p.dtype, threads, settings);
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
  list.push_back({1024, 1024, 1024, "NN", bf16});
  list.push_back({2048, 2048, 2048, "NN", bf16});
  // The small character GPT: 12×64 rows of width 128; forward, then the gradients of rows and weights.
  for (std::int64_t n : {384, 128, 512}) {
    list.push_back({768, n, 128, "NN", f32});
    list.push_back({768, 128, n, "NT", f32});
    list.push_back({128, n, 768, "TN", f32});
  }
  return list;
}

}  // namespace

double sgemm_gflops(const Settings& settings) {
  const Product p{1024, 1024, 1024, "NN", f32};
  return gflop(p) / timing(p, settings.threads, settings).seconds;
}

void run_gemm(const Settings& settings, const Machine&, Report& report) {
  for (const Product& p : products(settings)) {
    const std::string name = (p.dtype == f32 ? "sgemm " : p.dtype == f64 ? "dgemm " : "gemm ") + p.form;
    if (!report.wants(name)) continue;
    const std::int64_t sizes[] = {p.m, p.n, p.k};
    const std::string shape = joined(sizes), dtype(name_of(p.dtype));
    const Timing t = timing(p, settings.threads, settings);
    const double rate = gflop(p) / t.seconds;
    report.add({name, shape, dtype, "forward", settings.threads, t.seconds * 1e3, rate, "GFLOP/s",
                rate / t.peak, "multiply-add"});
    if (settings.threads == 1 || p.form != "NN") continue;
    const Timing alone = timing(p, 1, settings);
    report.add({name, shape, dtype, "forward", 1, alone.seconds * 1e3, gflop(p) / alone.seconds, "GFLOP/s",
                gflop(p) / alone.seconds / alone.peak, "multiply-add"});
    report.add({name + ", all / one", shape, dtype, "forward", settings.threads, t.seconds * 1e3,
                alone.seconds / t.seconds, "×", alone.seconds / t.seconds / settings.threads, "threads"});
  }
}

}  // namespace tg::bench
