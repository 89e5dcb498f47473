#include <tilegrad/core/report/bad_node.h>

#include <cmath>

namespace tg {
namespace {

// "nan at [0, 3] of f32 [4, 16]"; empty if all numbers are finite.
std::string bad_element(const Array& value) {
  const Array wide = value.to(f64);
  const double* x = wide.data<double>();
  for (std::int64_t i = 0; i < wide.numel(); ++i) {
    if (std::isfinite(x[i])) continue;
    std::string text = std::isnan(x[i]) ? "NaN" : x[i] > 0 ? "infinity" : "-infinity";
    if (!value.shape().empty()) text += " at " + detail::index_of(value.shape(), i).text();
    return text + " of " + std::string(name_of(value.dtype())) + " " + value.shape().text();
  }
  return {};
}

}  // namespace

std::string first_bad_node(Graph& graph, const std::vector<Feed>& feeds, std::uint64_t seed,
                           std::int64_t step, int threads) {
  // Skips views, because they contain values of other nodes. Also skips constants, because constants may be
  // infinite, for example in masks.
  std::vector<Tensor> made;
  for (const Node& node : graph.nodes())
    for (ValueId v = node.first_out; v < node.first_out + node.outs; ++v) {
      const Value& value = graph.values()[v];
      const bool leaf = node.op == &parameter_op || node.op == &constant_op || node.op == &full_op;
      if (value.root == v && is_float(value.dtype) && !leaf) made.push_back(graph.tensor(v));
    }
  for (const Node& node : graph.nodes()) {
    if (node.op != &parameter_op) continue;
    const Parameter& p = node.attrs.as<ParameterAttrs>().parameter;
    if (!is_float(p.dtype())) continue;
    if (const std::string bad = bad_element(p.read()); !bad.empty()) return p.name() + " has " + bad;
  }
  Program program =
      compile(graph, made, {.threads = threads, .fuse = false, .reuse = false, .allow_unassigned = true});
  program.seed(seed);
  program.set_step(step);
  for (const Feed& f : feeds)
    if (program.reads(f.input())) program.feed(f);
  program.run();

  // Finds the first bad value in node order. The inputs of its node were checked before and are finite.
  for (const Tensor& t : made) {
    const Node& node = graph.node_of(t.id());
    const std::string what = bad_element(program.fetch(t));
    if (what.empty()) continue;
    std::string text = node.op->name;
    if (const std::string& path = graph.name_of(node); !path.empty())
      text.append(" (").append(path).append(")");
    text.append(" made ").append(what);
    return text.append(" from finite numbers ").append(at_line(node.where));
  }
  return {};
}

}  // namespace tg
