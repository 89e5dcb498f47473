#include "autograd/replay.h"

#include <algorithm>

#include <tilegrad/ops/ops.h>

namespace tg {

namespace {

// Returns t with its axes in the memory order of `layout`. t replaces a node with this layout. All views of
// that node are then also possible for t.
Tensor laid_out_like(const Tensor& t, const Layout& layout) {
  if (t.layout().strides == layout.strides || !layout.is_dense()) return t;
  Axes order, inverse = Axes::filled(t.rank(), 0);
  for (int a = 0; a < t.rank(); ++a) order.push_back(a);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return layout.strides[a] > layout.strides[b]; });
  for (int a = 0; a < t.rank(); ++a) inverse[order[a]] = a;
  return permute(contiguous(permute(t, order)), inverse);
}

}  // namespace

Tensor Replay::now(ValueId v) const {
  if (const auto it = now_.find(v); it != now_.end()) return it->second;
  if (from_ == to_) return to_.tensor(v);
  throw Error("[replay] a node reads a value that was not replayed");
}

std::vector<Tensor> Replay::record(const Node& node, std::span<const Tensor> in) {
  if (node.op == &parameter_op) return {to_.param(node.attrs.as<ParameterAttrs>().parameter, node.where)};
  if (node.op == &rng_op) return {to_.rng(node.where)};
  if (substitute_)
    if (auto out = substitute_(node, in)) {
      for (std::uint32_t i = 0; i < node.outs; ++i)
        out->at(i) = laid_out_like(out->at(i), from_.values()[node.first_out + i].layout);
      return *out;
    }
  return to_.record(*node.op, in, node.attrs, node.where);
}

void Replay::run(NodeId first, NodeId last) {
  for (NodeId n = first; n < last; ++n) {
    const Node node = from_.nodes()[n];  // a copy, because recording moves the list
    first_node_[n] = static_cast<NodeId>(to_.nodes().size());
    if (node.outs > 0 && now_.contains(node.first_out)) continue;  // replaced by put()
    std::vector<Tensor> in;
    for (ValueId v : node.in) in.push_back(now(v));
    int segment = -1;
    if (node.segment >= 0) {
      const auto [it, fresh] = segments_.try_emplace(node.segment);
      if (fresh) it->second = to_.new_segment();
      segment = it->second;
    }
    const SegmentScope inside(segment);
    const DerivativeScope derivative(node.is_derivative);
    const std::vector<Tensor> out = record(node, in);
    for (std::uint32_t i = 0; i < node.outs; ++i) now_[node.first_out + i] = out[i];
    const CustomGradient* custom = from_.custom_gradient_ending_at(n);
    if (custom && keeps_custom_) add_custom(*custom);
  }
}

void Replay::add_custom(const CustomGradient& old) {
  const auto begin = first_node_.find(old.first);
  if (begin == first_node_.end()) return;  // only the end was requested
  CustomGradient region{begin->second, static_cast<NodeId>(to_.nodes().size() - 1), {}, {}, old.backward};
  for (ValueId v : old.in) region.in.push_back(now(v).id());
  for (ValueId v : old.out) region.out.push_back(now(v).id());
  to_.add_custom_gradient(std::move(region));
}

Replay::Substitute decomposed(const Op& op) {
  return [&op](const Node& node, std::span<const Tensor> in) -> std::optional<std::vector<Tensor>> {
    if (node.op != &op) return std::nullopt;
    return op.decompose(in, node.attrs);
  };
}

Replay::Substitute decomposed_all(int& count) {
  return [&count](const Node& node, std::span<const Tensor> in) -> std::optional<std::vector<Tensor>> {
    if (!node.op->decompose) return std::nullopt;
    ++count;
    return node.op->decompose(in, node.attrs);
  };
}

}  // namespace tg
