#include <tilegrad/autograd/custom_op.h>

#include <deque>
#include <mutex>

#include <tilegrad/ops/ops.h>
#include "core/base/one_user.h"

namespace tg {

std::vector<Tensor> CustomOp::all(std::initializer_list<TensorArg> in) const {
  const TensorArg* first = nullptr;
  for (const TensorArg& a : in)
    if (!first && !a.is_number()) first = &a;
  if (!first) {
    const std::string what = "[" + name_ + "] needs at least one tensor among its arguments";
    throw Error(in.size() == 0 ? what : in_context(what, in.begin()->where()));
  }
  std::vector<Tensor> tensors;
  for (const TensorArg& a : in)
    tensors.push_back(a.is_number()
                          ? full(first->tensor().graph(), {}, a.number(), first->tensor().dtype(), a.where())
                          : a.tensor());
  return all(tensors, first->where());
}

std::vector<Tensor> CustomOp::all(std::span<const Tensor> in, Where where) const {
  if (!record_) throw Error(in_context("[custom_op] an empty CustomOp was called: it was moved from", where));
  if (in.empty()) throw Error(in_context("[" + name_ + "] needs at least one tensor", where));
  for (const Tensor& t : in) {
    if (!t.defined()) throw Error(in_context("[" + name_ + "] got an undefined tensor", where));
    if (!in[0].graph().has(t))
      throw Error(in_context("[" + name_ + "] the tensors belong to different graphs", where));
  }
  thread_local int calls = 0;
  const Nested level(calls, name_, "the op's forward calls custom ops without end");
  const Scope scope(name_, where);
  return (*record_)({in.begin(), in.end()}, where);
}

namespace {

// Checks that the region's nodes read only each other and the region's inputs. Differentiation skips the
// region, so a gradient for any other value would be lost silently.
void check_region(const Graph& graph, const std::string& name, const CustomGradient& region, Where where) {
  const ValueId first_value = graph.nodes()[region.first].first_out;
  for (NodeId n = region.first; n <= region.last; ++n) {
    const Node& node = graph.nodes()[n];
    bool captured = node.op == &parameter_op || node.op == &input_op;
    for (ValueId v : node.in)
      captured = captured || (v < first_value && is_float(graph.values()[v].dtype) &&
                              graph.node_of(v).op != &constant_op && graph.node_of(v).op != &full_op &&
                              std::find(region.in.begin(), region.in.end(), v) == region.in.end());
    if (captured)
      throw Error(in_context("[" + name +
                                 "] its forward reads a tensor that is not among its inputs and would get " +
                                 "no gradient: make it an input",
                             where));
  }
}

}  // namespace

CustomOp custom_op(std::string name, GraphFunctions functions) {
  if (!functions.forward || !functions.backward)
    throw Error("[custom_op] " + name + " has no " + (functions.forward ? "backward" : "forward"));
  auto call = [name, functions](const std::vector<Tensor>& in, Where where) {
    Graph& graph = in.at(0).graph();
    const auto first = static_cast<NodeId>(graph.nodes().size());
    const auto first_value = static_cast<ValueId>(graph.values().size());
    std::vector<Tensor> out = functions.forward(in);
    if (out.empty()) throw Error(in_context("[" + name + "] its forward returned no output", where));
    for (const Tensor& t : out)
      if (!graph.has(t))
        throw Error(in_context("[" + name + "] its forward returned a tensor that is " +
                                   (t.defined() ? "of a different graph" : "undefined"),
                               where));
    // Copies the outputs inside the region. Only the region's gradient then reaches these copies, and at most
    // one region ends at each node.
    for (Tensor& t : out)
      if (graph.values()[t.id()].root < first_value) t = copy({t, where});
    if (graph.custom_gradient_ending_at(static_cast<NodeId>(graph.nodes().size() - 1)))
      out[0] = copy({out[0], where});
    CustomGradient region{first, static_cast<NodeId>(graph.nodes().size() - 1), {}, {}, functions.backward};
    for (const Tensor& t : in) region.in.push_back(t.id());
    for (const Tensor& t : out) region.out.push_back(t.id());
    check_region(graph, name, region, where);
    graph.add_custom_gradient(std::move(region));
    return out;
  };
  return CustomOp(std::move(name), std::move(call));
}

namespace {

std::vector<OutSpec> row_major_all(std::vector<OutSpec> specs) {
  for (OutSpec& s : specs) s = {s.dtype, row_major(s.layout.shape)};
  return specs;
}

std::vector<OutSpec> like_the_first(std::span<const Operand> in) {
  if (in.empty()) throw Error("needs at least one tensor");
  return {{in[0].dtype, in[0].layout}};
}

struct HostBackwardAttrs {
  int inputs, outputs;
  void fields(auto&& field) const { field("inputs", inputs), field("outputs", outputs); }
};

// Stores the backward of a host op. This backward is an ordinary op. It is not in a list of ops, because
// nothing looks it up by name. Its inputs are in…, out…, z…, and it writes one z_in per floating input.
const Op& keep_backward(const HostOp& host) {
  static auto& mutex = *new std::mutex;
  static auto& kept = *new std::deque<Op>;  // addresses stay valid, even after static objects are destroyed
  const std::lock_guard lock(mutex);
  return kept.emplace_back(
      Op{.name = host.name + "_backward",
         .infer =
             [](std::span<const Operand> in, const Attrs& a) {
               std::vector<OutSpec> specs;
               for (const Operand& x : in.first(static_cast<std::size_t>(a.as<HostBackwardAttrs>().inputs)))
                 if (is_float(x.dtype)) specs.push_back({x.dtype, row_major(x.shape())});
               return specs;
             },
         .not_differentiable = "the backward of a user-defined op is a C++ function",
         .host =
             [backward = host.backward](std::span<const HostView> in, std::span<const HostView> out,
                                        const Attrs& attrs) {
               const auto inputs = static_cast<std::size_t>(attrs.as<HostBackwardAttrs>().inputs);
               const auto outputs = static_cast<std::size_t>(attrs.as<HostBackwardAttrs>().outputs);
               backward({in.first(inputs), in.subspan(inputs, outputs), in.subspan(inputs + outputs), out});
             }});
}

std::vector<Tensor> record_backward(const Op& op, const Backprop& g) {
  std::vector<Tensor> operands(g.in.begin(), g.in.end());
  operands.insert(operands.end(), g.out.begin(), g.out.end());
  for (std::size_t i = 0; i < g.out.size(); ++i)
    operands.push_back(g.z[i].defined() ? contiguous(g.z[i]) : zeros_like(g.out[i]));
  const HostBackwardAttrs attrs{static_cast<int>(g.in.size()), static_cast<int>(g.out.size())};
  const std::vector<Tensor> z_float = g.in[0].graph().record(op, operands, attrs, Where::current());
  std::vector<Tensor> z;
  std::size_t next = 0;
  for (const Tensor& x : g.in) z.push_back(is_float(x.dtype()) ? z_float[next++] : Tensor());
  return z;
}

}  // namespace

CustomOp register_host_op(HostOp host) {
  if (!host.forward)
    throw Error("[register_host_op] " + host.name + " has no forward " + at_line(host.where));
  const auto self = std::make_shared<const Op*>(nullptr);
  CustomOp callable(host.name, [self](const std::vector<Tensor>& in, Where where) {
    std::vector<Tensor> operands;
    for (const Tensor& t : in) operands.push_back(contiguous({t, where}));
    return in.at(0).graph().record(**self, operands, {}, where);
  });
  for (Sample& s : host.samples)
    if (!s.call) s.call = [callable](std::span<const Tensor> x) { return callable.all(x, Where::current()); };
  Op op{.name = host.name,
        .doc = host.doc,
        .infer = [infer = host.infer ? host.infer : like_the_first](
                     std::span<const Operand> in, const Attrs&) { return row_major_all(infer(in)); },
        .samples = [samples = host.samples] { return samples; },
        .host = [forward = host.forward](std::span<const HostView> in, std::span<const HostView> out,
                                         const Attrs&) { forward(in, out); },
        .first_order_only = true,
        .where = host.where};
  if (host.backward)
    op.vjp = [&backward = keep_backward(host)](const Backprop& g) { return record_backward(backward, g); };
  else
    op.not_differentiable = "it was registered without a backward";
  *self = &register_op(std::move(op));
  return callable;
}

}  // namespace tg
