#include <tilegrad/ops/ceilings.h>

#include <algorithm>
#include <limits>

#include <tilegrad/ops/ops.h>

namespace tg {

namespace {

// The minimum time, in seconds, of the program's last step over `runs` runs.
double fastest_last_step(Program& program, int runs) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < runs; ++i) best = std::min(best, program.profile().back());
  return best;
}

double product_rate(const CompileOptions& options, DType dtype) {
  double rate = 0;
  for (std::int64_t n = 1024; n <= 8192; n *= 2) {
    Graph g;
    // Random operands, because a GPU at its power limit multiplies zeros faster.
    const Tensor a = uniform(g, {n, n}, -1, 1, dtype), b = uniform(g, {n, n}, -1, 1, dtype);
    const Tensor c = matmul(a, b);
    Program program = compile(g, {c}, options);
    const double seconds = fastest_last_step(program, 5), size = static_cast<double>(n);
    rate = std::max(rate, 2 * size * size * size / seconds);
    if (seconds > 2e-3) break;
  }
  return rate;
}

double copy_rate(Device device, const CompileOptions& options) {
  const std::size_t bytes = std::min(std::size_t{256} << 20, backend(device).available_bytes() / 4) / 4 * 4;
  Graph g;
  const Tensor x = g.input("x", {static_cast<std::int64_t>(bytes / 4)});
  Program program = compile(g, {x + 1}, options);
  program.feed({x, Array(x.shape(), f32)});
  return 2 * static_cast<double>(bytes) / fastest_last_step(program, 5);
}

}  // namespace

Ceilings measure_ceilings(const Program& program) {
  std::vector<DType> dtypes;
  for (const Step& s : program.steps())
    if ((s.op->name == "matmul" || s.op->name.starts_with("flash_attn")) &&
        std::find(dtypes.begin(), dtypes.end(), s.in[0].dtype) == dtypes.end())
      dtypes.push_back(s.in[0].dtype);
  return measure_ceilings(program, dtypes);
}

Ceilings measure_ceilings(const Program& program, const std::vector<DType>& dtypes) {
  const CompileOptions options{
      .device = program.device(), .threads = program.options().threads, .tf32 = program.options().tf32};
  Ceilings c;
  c.copy = copy_rate(program.device(), options);
  for (DType t : dtypes) c.product.emplace_back(t, product_rate(options, t));
  return c;
}

}  // namespace tg
