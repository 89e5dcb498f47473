#include <tilegrad/autograd/gradients.h>

#include <algorithm>
#include <utility>

#include <tilegrad/ops/ops.h>
#include "ops/index.h"

namespace tg {

namespace {

// Walks the nodes first … last backwards. Values of older nodes get no gradient.
class ReverseWalk {
 public:
  ReverseWalk(Graph& graph, NodeId first, NodeId last)
      : graph_(graph), first_(first), last_(last), base_(graph.nodes()[first].first_out) {}

  // Marks the values that a gradient must reach. These are the values that depend on a tensor in `wrt`
  // through floating values. In a region with a custom gradient, every output is considered to depend on
  // every input.
  void mark(const std::vector<Tensor>& wrt) {
    active_.assign(graph_.values().size() - base_, false);
    for (const Tensor& w : wrt) active_[w.id() - base_] = true;
    const auto is_active = [&](ValueId v) { return active(v); };
    for (NodeId n = first_; n <= last_; ++n) {
      const Node& node = graph_.nodes()[n];
      if (node.segment >= 0) segments_[node.segment].push_back(n);
      if (std::any_of(node.in.begin(), node.in.end(), is_active))
        for (ValueId v = node.first_out; v < node.first_out + node.outs; ++v) activate(v);
      const CustomGradient* custom = graph_.custom_gradient_ending_at(n);
      if (custom && std::any_of(custom->in.begin(), custom->in.end(), is_active))
        for (ValueId v : custom->out) activate(v);
    }
    slots_.resize(active_.size());
  }

  void accumulate(ValueId v, const Tensor& z) {
    if (!z.defined() || !active(v)) return;
    Tensor& slot = slots_[v - base_];
    slot = slot.defined() ? detail::add_gradient(slot, z) : z;
  }

  void run() {
    for (std::int64_t n = last_; n >= first_; --n) {
      if (const CustomGradient* custom = graph_.custom_gradient_ending_at(static_cast<NodeId>(n))) {
        step_custom(*custom);
        n = custom->first;
        continue;
      }
      step(static_cast<NodeId>(n));
    }
  }

  // The gradient of v. It is undefined if no gradient has reached v.
  Tensor slot(ValueId v) const { return slots_[v - base_]; }

 private:
  bool active(ValueId v) const { return v >= base_ && active_[v - base_]; }
  void activate(ValueId v) {
    if (is_float(graph_.values()[v].dtype)) active_[v - base_] = true;
  }

  bool has_slot(const Node& node) const {
    for (ValueId v = node.first_out; v < node.first_out + node.outs; ++v)
      if (slot(v).defined()) return true;
    return false;
  }

  void step(NodeId n) {
    if (!has_slot(graph_.nodes()[n])) return;
    const Node node = graph_.nodes()[n];  // a copy, because recording moves the list
    std::vector<bool> needed;
    bool any = false;
    for (ValueId v : node.in) {
      needed.push_back(active(v));
      any = any || active(v);
    }
    if (!any) return;
    const bool by_decomposition = !node.op->vjp && node.op->decompose && node.op->not_differentiable.empty();
    if (!node.op->vjp && !by_decomposition)
      throw GradientError("[" + graph_.label_of(node) + "] the gradient cannot pass: " +
                          node.op->not_differentiable + " " + at_line(node.where));
    if (node.segment >= 0) recompute(node.segment);
    std::vector<Tensor> in, out, z;
    for (ValueId v : node.in) in.push_back(now(v));
    for (ValueId v = node.first_out; v < node.first_out + node.outs; ++v) {
      out.push_back(now(v));
      z.push_back(slot(v));
    }
    const Scope scope("grad." + graph_.name_of(node), node.where);
    const SegmentScope outside(-1);
    accumulate_all(graph_.label_of(node), node.where, node.in,
                   by_decomposition ? differentiate_decomposition(node, in, z, needed)
                                    : node.op->vjp(Backprop{in, out, z, node.attrs, needed}));
  }

  // The gradient of an op without a vjp: records its decomposition from the node's inputs and walks it
  // backwards. The second derivatives of fused ops are computed in this way.
  std::vector<Tensor> differentiate_decomposition(const Node& node, const std::vector<Tensor>& in,
                                                  const std::vector<Tensor>& z,
                                                  const std::vector<bool>& needed) {
    const auto first = static_cast<NodeId>(graph_.nodes().size());
    std::vector<Tensor> own;  // a separate value per operand, even if two are the same tensor
    for (const Tensor& x : in) own.push_back(view(x, x.shape()));
    const std::vector<Tensor> out = node.op->decompose(own, node.attrs);
    if (out.size() != node.outs)
      throw GradientError("[" + graph_.label_of(node) + "] its decomposition returned " +
                          std::to_string(out.size()) + " tensors for " + std::to_string(node.outs) +
                          " outputs " + at_line(node.where));
    ReverseWalk inner(graph_, first, static_cast<NodeId>(graph_.nodes().size() - 1));
    std::vector<Tensor> sources;
    for (std::size_t i = 0; i < own.size(); ++i)
      if (needed[i]) sources.push_back(own[i]);
    inner.mark(sources);
    for (std::size_t i = 0; i < out.size(); ++i) inner.accumulate(out[i].id(), z[i]);
    inner.run();
    std::vector<Tensor> z_in;
    for (const Tensor& x : own) z_in.push_back(inner.slot(x.id()));
    return z_in;
  }

  void step_custom(const CustomGradient& custom) {
    std::vector<Tensor> in, out, z;
    bool any = false;
    for (ValueId v : custom.out) {
      any = any || slot(v).defined();
      out.push_back(now(v));
      z.push_back(slot(v));
    }
    if (!any) return;
    for (ValueId v : custom.in) in.push_back(now(v));
    const Node& last = graph_.nodes()[custom.last];
    const Where where = last.where;
    const std::string& path = graph_.name_of(last);
    const std::string label = path.empty() ? "custom op" : path + "/custom op";
    for (std::size_t i = 0; i < z.size(); ++i)
      if (!z[i].defined()) z[i] = zeros_like({out[i], where});
    const Scope scope("grad", where);
    accumulate_all(label, where, custom.in, custom.backward(in, out, z));
  }

  void accumulate_all(const std::string& label, const Where& where, const std::vector<ValueId>& in,
                      const std::vector<Tensor>& z) {
    const auto refuse = [&](const std::string& what) {
      throw GradientError("[" + label + "] " + what + " " + at_line(where));
    };
    if (z.size() != in.size())
      refuse("its gradient returned " + std::to_string(z.size()) + " tensors for " +
             std::to_string(in.size()) + " inputs");
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (!z[i].defined()) continue;
      const Tensor x = graph_.tensor(in[i]);
      if (!graph_.has(z[i]))
        refuse("gradient of input " + std::to_string(i) + " is a tensor of a different graph");
      if (active(in[i]) && (z[i].shape() != x.shape() || z[i].dtype() != x.dtype()))
        refuse("gradient of input " + std::to_string(i) + " is " + z[i].text() + ", the input is " +
               x.text());
      accumulate(in[i], z[i]);
    }
  }

  // Records the segment's nodes again. The copies then replace the originals in the backward pass.
  void recompute(std::int32_t segment) {
    const std::vector<NodeId> nodes = std::exchange(segments_[segment], {});  // empty if this was done before
    const SegmentScope outside(-1);
    for (NodeId n : nodes) {
      const Node node = graph_.nodes()[n];
      std::vector<Tensor> in;
      for (ValueId v : node.in) in.push_back(now(v));
      const Scope scope("again." + graph_.name_of(node), node.where);
      const std::vector<Tensor> out = graph_.record(*node.op, in, node.attrs, node.where);
      for (std::uint32_t i = 0; i < node.outs; ++i) again_[node.first_out + i] = out[i].id();
    }
  }

  Tensor now(ValueId v) {
    const auto it = again_.find(v);
    return graph_.tensor(it == again_.end() ? v : it->second);
  }

  Graph& graph_;
  const NodeId first_, last_;
  const ValueId base_;  // first value of node `first`; slots_ starts at this value
  std::vector<bool> active_;
  std::vector<Tensor> slots_;                                       // gradients by value; undefined: zero
  std::unordered_map<std::int32_t, std::vector<NodeId>> segments_;  // nodes of each segment, to be recomputed
  std::unordered_map<ValueId, ValueId> again_;
};

// Whether each value up to the node `last` depends on w.
struct Reach {
  std::vector<bool> any, floating;  // any dependency; a dependency through floating values only
};

Reach reach_of(const Graph& graph, const Tensor& w, NodeId last) {
  Reach r;
  r.any.assign(graph.values().size(), false);
  r.any[w.id()] = true;
  r.floating = r.any;
  const auto is_floating = [&](ValueId v) { return is_float(graph.values()[v].dtype); };
  // A derivative may use comparisons or indices, as in relu and top_k. It is not differentiable with respect
  // to them. Therefore only floating values count in derivatives.
  const auto pass_on = [&](const std::vector<ValueId>& in, ValueId out, bool is_derivative) {
    for (ValueId v : in) {
      if (is_derivative && !(is_floating(v) && is_floating(out))) continue;
      r.any[out] = r.any[out] || r.any[v];
      r.floating[out] = r.floating[out] || (is_floating(out) && r.floating[v]);
    }
  };
  for (NodeId n = 0; n <= last; ++n) {
    const Node& node = graph.nodes()[n];
    if (node.op->stops_gradient) continue;
    for (ValueId v = node.first_out; v < node.first_out + node.outs; ++v)
      pass_on(node.in, v, node.is_derivative);
    if (const CustomGradient* custom = graph.custom_gradient_ending_at(n))
      for (ValueId v : custom->out) pass_on(custom->in, v, node.is_derivative);
  }
  return r;
}

std::string leaf_label(const Graph& graph, const Tensor& w) {
  const Node& node = graph.node_of(w.id());
  if (node.op == &parameter_op) return node.attrs.as<ParameterAttrs>().parameter.name();
  if (node.op == &input_op) return node.attrs.as<InputAttrs>().name;
  return graph.label_of(node);
}

// Returns the first node, on a path to the loss, that converts floating values to integers or booleans.
const Node& cut_of(const Graph& graph, const Tensor& loss, const Reach& r) {
  std::vector<bool> leads(graph.values().size(), false);
  leads[loss.id()] = true;
  NodeId cut = graph.values()[loss.id()].node;
  for (std::int64_t n = cut; n >= 0; --n) {
    const Node& node = graph.nodes()[static_cast<std::size_t>(n)];
    for (ValueId v = node.first_out; v < node.first_out + node.outs; ++v) {
      if (!leads[v] || !r.any[v] || r.floating[v]) continue;
      cut = static_cast<NodeId>(n);
      for (ValueId in : node.in) leads[in] = true;
    }
  }
  return graph.nodes()[cut];
}

// Throws if the loss depends on w only through integers or booleans.
void refuse_cut(const Graph& graph, const Tensor& loss, const Tensor& w) {
  const Node& maker = graph.node_of(loss.id());
  const Reach r = reach_of(graph, w, graph.values()[loss.id()].node);
  if (!r.any[loss.id()] || r.floating[loss.id()]) return;
  const Node& cut = cut_of(graph, loss, r);
  throw GradientError("[gradients] the loss " + graph.label_of(maker) + " " + at_line(maker.where) +
                      " depends on " + leaf_label(graph, w) + " " + w.text() +
                      " through integers or booleans only, which have no gradient: first those of " +
                      graph.label_of(cut) + " " + at_line(cut.where) +
                      "; use stop_gradient() if no gradient is intended");
}

}  // namespace

bool depends_on(const Tensor& loss, const Tensor& w) {
  const Graph& graph = loss.graph();
  return graph.has(w) && reach_of(graph, w, graph.value(loss.id()).node).floating[loss.id()];
}

std::vector<Tensor> gradients(const Tensor& loss, const std::vector<Tensor>& wrt, const Tensor& cotangent) {
  if (!loss.defined()) throw GradientError("[gradients] the loss is an undefined tensor");
  Graph& graph = loss.graph();
  const Node& maker = graph.node_of(loss.id());
  const Where where = maker.where;
  const std::string name = graph.label_of(maker);
  const auto refuse = [&](const std::string& what) {
    throw GradientError("[gradients] " + what + " " + at_line(where));
  };
  const std::string it = "the loss " + name + " is " + loss.text();
  if (!is_float(loss.dtype())) refuse(it + ", expected a floating tensor");
  if (!cotangent.defined() && loss.numel() != 1) refuse(it + ", expected one element, or a cotangent");
  if (cotangent.defined() && !graph.has(cotangent))
    refuse("the cotangent belongs to a different graph from the loss " + name);
  if (cotangent.defined() && (cotangent.shape() != loss.shape() || cotangent.dtype() != loss.dtype()))
    refuse("the cotangent is " + cotangent.text() + ", " + it);
  for (std::size_t i = 0; i < wrt.size(); ++i) {
    const Tensor& w = wrt[i];
    if (graph.has(w) && is_float(w.dtype())) continue;
    const std::string kind = !w.defined() ? "undefined" : !graph.has(w) ? "of a different graph" : w.text();
    refuse("tensor " + std::to_string(i) + " to differentiate by is " + kind +
           ", expected a floating tensor of the loss's graph");
  }

  const DerivativeScope derivative;
  ReverseWalk walk(graph, 0, graph.values()[loss.id()].node);
  walk.mark(wrt);
  walk.accumulate(loss.id(), cotangent.defined() ? cotangent : ones_like({loss, where}));
  walk.run();
  std::vector<Tensor> result;
  for (const Tensor& w : wrt) {
    const Tensor z = walk.slot(w.id());
    if (!z.defined()) refuse_cut(graph, loss, w);
    result.push_back(z.defined() ? z : zeros_like({w, where}));
  }
  return result;
}

std::vector<Tensor> checkpoint(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& f,
                               const std::vector<Tensor>& inputs) {
  if (inputs.empty() || !f) throw Error("[checkpoint] needs a function and at least one input");
  const SegmentScope segment(inputs[0].graph().new_segment());
  return f(inputs);
}

}  // namespace tg
