// Measures ops that are limited by memory bandwidth. The rate is the minimum number of bytes that an op must
// move, divided by its time. It is compared with the copy bandwidth. Every pointwise op of the list is
// measured by itself. Its inputs have the same ranges as in its samples. The other ops are called as a user
// would call them.
#include <tilegrad/ops/ops.h>

#include "tools/bench/measure.h"
#include "tools/bench/report.h"

namespace tg::bench {

namespace {

struct Case {
  std::string name, op;  // op: measure its gradient if the call ends with it
  std::vector<SampleInput> inputs;
  std::function<std::vector<Tensor>(std::span<const Tensor>)> call;
};

std::vector<Case> cases(std::int64_t rows, std::int64_t columns) {
  const Shape all{rows, columns};
  std::vector<Case> list;
  for (const Op* op : all_ops()) {
    if (!op->pointwise || !op->samples) continue;
    Sample sample = op->samples()[0];  // its operands have the same shape
    for (SampleInput& i : sample.inputs) i.shape = all;
    list.push_back({op->name, op->name, sample.inputs, sample.call});
  }
  using Inputs = std::vector<SampleInput>;
  const auto add = [&](const std::string& name, const std::string& op, const Inputs& inputs, auto f) {
    list.push_back({name, op, inputs, [f](std::span<const Tensor> x) { return std::vector<Tensor>{f(x)}; }});
  };
  const auto one = [&](const std::string& name, const std::string& op, auto f) {
    add(name, op, {{all}}, [f](auto x) { return f(x[0]); });
  };
  const auto two = [&](const std::string& name, const std::string& op, const SampleInput& second, auto f) {
    add(name, op, {{all}, second}, [f](auto x) { return f(x[0], x[1]); });
  };
  const SampleInput row{{columns}};
  const auto indices = [&](std::int64_t below) {
    return SampleInput{{rows}, {Fill::index, 0, static_cast<double>(below)}, i64};
  };
  one("copy of transposed", "contiguous", [](Tensor x) { return contiguous(transpose(x, 0, 1)); });
  one("sum of all", "sum", [](Tensor x) { return sum(x); });
  one("sum over rows", "sum", [](Tensor x) { return sum(x, {0}); });
  one("sum over columns", "sum", [](Tensor x) { return sum(x, {1}); });
  one("max over columns", "max", [](Tensor x) { return max(x, {1}); });
  one("argmax over columns", "argmax", [](Tensor x) { return argmax(x, {1}); });
  one("softmax", "softmax", [](Tensor x) { return softmax(x); });
  one("log_softmax", "log_softmax", [](Tensor x) { return log_softmax(x); });
  one("dropout", "dropout", [](Tensor x) { return dropout(x, 0.1); });
  one("normal", "normal", [=](Tensor x) { return normal(x.graph(), all); });
  one("rope", "rope", [=](Tensor x) {  // head size 128 if that divides the width
    return rope(columns % 128 == 0 ? x.view({rows, columns / 128, 128}).transpose(0, 1) : x);
  });
  one("swiglu", "", [](Tensor x) { return swiglu(x); });
  add("layer_norm", "layer_norm", {{all}, row, row}, [](auto x) { return layer_norm(x[0], x[1], x[2]); });
  two("rms_norm", "rms_norm", row, [](Tensor x, Tensor w) { return rms_norm(x, w); });
  two("cross_entropy", "cross_entropy", indices(columns),
      [](Tensor x, Tensor targets) { return cross_entropy(x, targets, {.reduction = Reduction::none}); });
  list.push_back(
      {"adamw", "", {{all}, {all}, {all}, {all, {Fill::uniform, 0, 1}}}, [](std::span<const Tensor> x) {
         const auto [p, m, v] = adamw(x[0], x[1], x[2], x[3], 0.01, 3);
         return std::vector<Tensor>{p, m, v};
       }});
  one("logsumexp", "logsumexp", [](Tensor x) { return logsumexp(x, {1}); });
  one("cumsum", "cumsum", [](Tensor x) { return cumsum(x, 1); });
  one("tril", "tril", [](Tensor x) { return tril(x); });
  two("embedding", "embedding", indices(rows), [](Tensor w, Tensor i) { return embedding(w, i); });
  const SampleInput logits{all, {Fill::uniform, -10, 10}}, keys{{rows, 2}, {Fill::index, 0, 1e6}, i64};
  const auto drawn = [&](const std::string& name, double temperature, double top_k, double top_p) {
    add(name, "", {logits, keys}, [=](auto x) { return sample(x[0], temperature, x[1], top_k, top_p); });
  };
  drawn("sample, temperature 0", 0, 0, 1);
  drawn("sample", 0.8, 0, 1);
  drawn("sample, top_k 50", 0.8, 50, 1);
  drawn("sample, top_p 0.95", 0.8, 0, 0.95);
  two("concat", "concat", {all}, [](Tensor x, Tensor y) { return concat({x, y}, 1); });
  one("full", "full", [=](Tensor x) { return full(x.graph(), all, 1.5); });
  two("add a row", "", row, [](Tensor x, Tensor y) { return x + y; });
  two("add a column", "", {{rows, 1}}, [](Tensor x, Tensor y) { return x + y; });
  // Fused elementwise kernels that end in a reduction.
  two("row sums of a product", "", {all}, [](Tensor x, Tensor y) { return sum(x * y, {1}); });
  two("row maxima of a difference", "", {all}, [](Tensor x, Tensor y) { return max(abs(x - y), {1}); });
  two("mean squared error", "", {all}, [](Tensor x, Tensor y) { return mean((x - y) * (x - y)); });
  one("row means of squares", "", [](Tensor x) { return mean(x * x, {1}); });
  one("softmax by hand", "", [=](Tensor x) {
    const Tensor e = exp(x - expand(max(x, {1}, true), all));
    return e / expand(sum(e, {1}, true), all);
  });
  one("rms_norm by hand", "",
      [=](Tensor x) { return x * expand(rsqrt(mean(x * x, {1}, true) + 1e-5), all); });
  two("chain of 8", "", {all}, [](Tensor x, Tensor y) {
    const Tensor z = (x * 2 + y) * x;
    return (z - 1) * z + y * 0.5;
  });
  return list;
}

Array filled(const SampleInput& i, DType dtype) {
  const DType t = i.dtype.value_or(dtype);
  if (t == boolean) return random_array(i.shape, t, 0, 2);
  return i.fill.kind == Fill::normal ? random_array(i.shape, t, -2, 2)
                                     : random_array(i.shape, t, i.fill.low, i.fill.high);
}

// The graph of a case, and the values of its inputs.
struct Recorded {
  Graph g;
  std::vector<std::pair<Tensor, Array>> values;

  Tensor input(const Shape& shape, DType dtype, Array value) {
    return values.emplace_back(g.input("x", shape, dtype), std::move(value)).first;
  }

  // Compiles and measures a program for `out` with the inputs that it needs, and reports it.
  void measure(const Case& c, const std::string& pass, const std::vector<Tensor>& out,
               const std::string& shape, Report& report) {
    Program program = compile(g, out, report.settings.compile_options());
    if (program.steps().empty()) return;
    for (const auto& [input, value] : values)
      if (program.reads(input)) program.feed({input, value});
    const double bytes = static_cast<double>(program.memory().inputs) + bytes_of(out);
    const double s = time_of_run(program, report.settings), rate = bytes / s * 1e-9;
    report.add(
        report.row(c.name, shape, pass).time(s).at(rate, "GB/s").part(rate / report.machine.copy, "copy"));
  }
};

void run_case(const Case& c, const std::string& shape, Report& report) {
  Recorded r;
  std::vector<Tensor> inputs;
  for (const SampleInput& i : c.inputs)
    inputs.push_back(
        r.input(i.shape, i.dtype.value_or(report.settings.dtype), filled(i, report.settings.dtype)));
  const std::vector<Tensor> out = c.call(inputs);
  r.measure(c, "forward", out, shape, report);

  // Measures the gradient op by itself. Results and cotangents of the op are inputs of the program.
  const Node node = r.g.node_of(out[0].id());
  if (node.op->name != c.op || !node.op->vjp || !is_float(out[0].dtype())) return;
  std::vector<Tensor> in, results, z;
  std::vector<bool> needed;
  for (ValueId v : node.in) {
    in.push_back(r.g.tensor(v));
    needed.push_back(is_float(in.back().dtype()));
  }
  for (std::uint32_t i = 0; i < node.outs; ++i) {
    const Tensor y = r.g.tensor(node.first_out + i);
    const auto input = [&] {
      return r.input(y.shape(), y.dtype(), random_array(y.shape(), y.dtype(), 0.5, 2));
    };
    results.push_back(input());
    z.push_back(i < out.size() ? input() : Tensor{});  // outputs that are saved only for the gradient have no
                                                       // cotangent
  }
  std::vector<Tensor> gradients = node.op->vjp({in, results, z, node.attrs, needed});
  std::erase_if(gradients, [](const Tensor& t) { return !t.defined(); });
  if (!gradients.empty()) r.measure(c, "backward", gradients, shape, report);
}

}  // namespace

void run_ops(Report& report) {
  const Settings& settings = report.settings;
  // On a GPU, the op moves as many bytes as the copy with which it is compared.
  const auto rows = static_cast<std::int64_t>((std::size_t{256} << 20) / 4096 / size_of(settings.dtype));
  const Sizes sizes = report.sizes({settings.on_cpu() ? 4096 : rows, 4096});
  for (const Case& c : cases(sizes[0], sizes[1]))
    if (report.selects(c.name)) run_case(c, joined(sizes), report);
}

}  // namespace tg::bench
