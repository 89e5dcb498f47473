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
    std::string place;
    std::int64_t rest = i;
    for (std::size_t axis = value.shape().size(); axis-- > 0; rest /= value.shape()[axis])
      place = std::to_string(rest % value.shape()[axis]) + (place.empty() ? "" : ", ") + place;
    const std::string number = std::isnan(x[i]) ? "NaN" : x[i] > 0 ? "infinity" : "-infinity";
    return number + (place.empty() ? "" : " at [" + place + "]") + " of " +
           std::string(name_of(value.dtype())) + " " + value.shape().text();
  }
  return {};
}

}  // namespace

std::string first_bad_node(Graph& graph, const std::vector<Feed>& feeds, std::uint64_t seed,
                           std::int64_t step, int threads) {
  // Views show what others made. Constants may be infinite: masks are.
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
  program.run(feeds);

  std::vector<bool> bad(graph.values().size(), false);
  for (const Tensor& t : made) {
    const Node& node = graph.node_of(t.id());
    const std::string what = bad_element(program.fetch(t));
    if (what.empty()) continue;
    bad[t.id()] = true;
    bool from_finite = true;
    for (const ValueId v : node.in) from_finite = from_finite && !bad[graph.values()[v].root];
    if (!from_finite) continue;
    const std::string& path = graph.name_of(node);
    return node.op->name + (path.empty() ? "" : " (" + path + ")") + " made " + what +
           " from finite numbers " + at_line(node.where);
  }
  return {};
}

}  // namespace tg
