// Ops that move memory: the minimal number of bytes that they must move, as a share of copy bandwidth. Every
// pointwise op of the list is measured alone, with inputs like those of its samples; the others are called as
// a user would.
#include <tilegrad/ops/ops.h>

#include "tools/bench/modes.h"

namespace tg::bench {

namespace {

struct Case {
  std::string name, op;  // the op whose gradient is taken, where the call ends in it
  std::vector<SampleInput> inputs;
  std::function<std::vector<Tensor>(std::span<const Tensor>)> call;
};

std::vector<Case> cases(std::int64_t rows, std::int64_t columns) {
  const Shape all{rows, columns};
  std::vector<Case> list;
  for (const Op* op : all_ops()) {
    if (!op->pointwise || !op->samples) continue;
    Sample sample = op->samples()[0];  // operands of one shape
    for (SampleInput& i : sample.inputs) i.shape = all;
    list.push_back({op->name, op->name, sample.inputs, sample.call});
  }
  const auto one = [&](const std::string& name, const std::string& op, auto f) {
    list.push_back(
        {name, op, {{all}}, [f](std::span<const Tensor> x) { return std::vector<Tensor>{f(x[0])}; }});
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
  one("rope", "rope", [=](Tensor x) {  // heads of 128 where that is a divisor
    return rope(columns % 128 == 0 ? x.view({rows, columns / 128, 128}).transpose(0, 1) : x);
  });
  one("swiglu", "", [](Tensor x) { return swiglu(x); });
  const auto weighted = [&](const std::string& name, std::vector<SampleInput> inputs, auto f) {
    list.push_back({name, name, std::move(inputs),
                    [f](std::span<const Tensor> x) { return std::vector<Tensor>{f(x)}; }});
  };
  const SampleInput row{{columns}};
  weighted("layer_norm", {{all}, row, row}, [](auto x) { return layer_norm(x[0], x[1], x[2]); });
  weighted("rms_norm", {{all}, row}, [](auto x) { return rms_norm(x[0], x[1]); });
  weighted("cross_entropy", {{all}, {{rows}, {Fill::index, 0, static_cast<double>(columns)}, i64}},
           [](auto x) { return cross_entropy(x[0], x[1], {.reduction = Reduction::none}); });
  list.push_back(
      {"adamw", "", {{all}, {all}, {all}, {all, {Fill::uniform, 0, 1}}}, [](std::span<const Tensor> x) {
         const auto [p, m, v] = adamw(x[0], x[1], x[2], x[3], 0.01, 3);
         return std::vector<Tensor>{p, m, v};
       }});
  one("logsumexp", "logsumexp", [](Tensor x) { return logsumexp(x, {1}); });
  one("cumsum", "cumsum", [](Tensor x) { return cumsum(x, 1); });
  one("tril", "tril", [](Tensor x) { return tril(x); });
  weighted("embedding", {{all}, {{rows}, {Fill::index, 0, static_cast<double>(rows)}, i64}},
           [](auto x) { return embedding(x[0], x[1]); });
  const SampleInput logits{all, {Fill::uniform, -10, 10}}, keys{{rows, 2}, {Fill::index, 0, 1e6}, i64};
  const auto drawn = [&](const std::string& name, double temperature, double top_k, double top_p) {
    list.push_back({name, "", {logits, keys}, [=](std::span<const Tensor> x) {
                      return std::vector<Tensor>{sample(x[0], temperature, x[1], top_k, top_p)};
                    }});
  };
  drawn("sample, temperature 0", 0, 0, 1);
  drawn("sample", 0.8, 0, 1);
  drawn("sample, top_k 50", 0.8, 50, 1);
  drawn("sample, top_p 0.95", 0.8, 0, 0.95);
  weighted("concat", {{all}, {all}}, [](auto x) { return concat({x[0], x[1]}, 1); });
  one("full", "full", [=](Tensor x) { return full(x.graph(), all, 1.5); });
  list.push_back({"add a row", "", {{all}, {{columns}}}, [](std::span<const Tensor> x) {
                    return std::vector<Tensor>{x[0] + x[1]};
                  }});
  list.push_back({"add a column", "", {{all}, {{rows, 1}}}, [](std::span<const Tensor> x) {
                    return std::vector<Tensor>{x[0] + x[1]};
                  }});
  // Chains that end in a reduction.
  const auto ending = [&](const std::string& name, auto f) {
    list.push_back({name, "", {{all}, {all}}, [f](std::span<const Tensor> x) {
                      return std::vector<Tensor>{f(x[0], x[1])};
                    }});
  };
  ending("row sums of a product", [](Tensor x, Tensor y) { return sum(x * y, {1}); });
  ending("row maxima of a difference", [](Tensor x, Tensor y) { return max(abs(x - y), {1}); });
  ending("mean squared error", [](Tensor x, Tensor y) { return mean((x - y) * (x - y)); });
  one("row means of squares", "", [](Tensor x) { return mean(x * x, {1}); });
  one("softmax by hand", "", [=](Tensor x) {
    const Tensor e = exp(x - expand(max(x, {1}, true), all));
    return e / expand(sum(e, {1}, true), all);
  });
  one("rms_norm by hand", "",
      [=](Tensor x) { return x * expand(rsqrt(mean(x * x, {1}, true) + 1e-5), all); });
  list.push_back({"chain of 8", "", {{all}, {all}}, [](std::span<const Tensor> x) {
                    const Tensor y = (x[0] * 2 + x[1]) * x[0];
                    return std::vector<Tensor>{(y - 1) * y + x[1] * 0.5};
                  }});
  return list;
}

Array filled(const SampleInput& i, DType dtype) {
  const DType t = i.dtype.value_or(dtype);
  if (t == boolean) return random_array(i.shape, t, 0, 2);
  return i.fill.kind == Fill::normal ? random_array(i.shape, t, -2, 2)
                                     : random_array(i.shape, t, i.fill.low, i.fill.high);
}

double bytes_of(std::span<const Tensor> ts) {
  double bytes = 0;
  for (const Tensor& t : ts)
    bytes += static_cast<double>(t.numel()) * static_cast<double>(size_of(t.dtype()));
  return bytes;
}

// Runs a program for `out`, with the feeds that it needs, and reports it.
void measure(const Case& c, const std::string& pass, Graph& g, const std::vector<Tensor>& out,
             const std::vector<std::pair<Tensor, Array>>& values, const std::string& shape,
             const Settings& settings, const Machine& machine, Report& report) {
  Program program = compile(g, out, options_of(settings, settings.threads));
  if (program.steps().empty()) return;
  for (const auto& [input, value] : values)
    if (program.reads(input)) program.feed({input, value});
  const double bytes = static_cast<double>(program.memory().inputs) + bytes_of(out);
  const double s = time_of_run(program, settings), rate = bytes / s * 1e-9;
  report.add({c.name, shape, settings.dtype_name(), pass, settings.threads, s * 1e3, rate, "GB/s",
              rate / machine.copy, "copy"});
}

void run_case(const Case& c, const std::string& shape, const Settings& settings, const Machine& machine,
              Report& report) {
  Graph g;
  std::vector<Tensor> inputs;
  std::vector<std::pair<Tensor, Array>> values;
  for (const SampleInput& i : c.inputs) {
    inputs.push_back(g.input("x", i.shape, i.dtype.value_or(settings.dtype)));
    values.emplace_back(inputs.back(), filled(i, settings.dtype));
  }
  const std::vector<Tensor> out = c.call(inputs);
  measure(c, "forward", g, out, values, shape, settings, machine, report);

  // The gradient by itself: the op's own, on results and cotangents that are inputs.
  const Node node = g.node_of(out[0].id());
  if (node.op->name != c.op || !node.op->vjp || !is_float(out[0].dtype())) return;
  std::vector<Tensor> in, results, z;
  std::vector<bool> needed;
  for (ValueId v : node.in) {
    in.push_back(g.tensor(v));
    needed.push_back(is_float(in.back().dtype()));
  }
  for (std::uint32_t i = 0; i < node.outs; ++i) {  // outputs saved for the gradient get no cotangent
    const Tensor y = g.tensor(node.first_out + i);
    for (std::vector<Tensor>* list : {&results, &z}) {
      if (list == &z && i >= out.size()) {
        z.emplace_back();
        continue;
      }
      list->push_back(g.input("y", y.shape(), y.dtype()));
      values.emplace_back(list->back(), random_array(y.shape(), y.dtype(), 0.5, 2));
    }
  }
  std::vector<Tensor> gradients;
  for (const Tensor& t : node.op->vjp({in, results, z, node.attrs, needed}))
    if (t.defined()) gradients.push_back(t);
  if (!gradients.empty()) measure(c, "backward", g, gradients, values, shape, settings, machine, report);
}

}  // namespace

void run_ops(const Settings& settings, const Machine& machine, Report& report) {
  // On a GPU as many bytes as the copy that they are a share of (nn/profile.cpp).
  const auto rows = static_cast<std::int64_t>((std::size_t{256} << 20) / 4096 / size_of(settings.dtype));
  const std::vector<std::int64_t> sizes = !settings.shapes.empty() ? settings.shapes[0]
                                          : settings.device.kind == Device::cpu_kind
                                              ? std::vector<std::int64_t>{4096, 4096}
                                              : std::vector<std::int64_t>{rows, 4096};
  for (const Case& c : cases(sizes[0], sizes[1]))
    if (report.selects(c.name)) run_case(c, joined(sizes), settings, machine, report);
}

}  // namespace tg::bench
