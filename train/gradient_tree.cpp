#include "train/gradient_tree.h"

#include <bit>

#include <tilegrad/ops/ops.h>
#include "core/base/alignment.h"

namespace tg::train {

namespace {

// Returns a tensor that can be written directly to a leaf. If v is a view of all elements of its root, this
// is the root. Otherwise it is a copy.
Tensor stored(const Tensor& v) {
  const Graph& graph = v.graph();
  const Tensor whole = v.graph().tensor(graph.values()[v.id()].root);
  const bool is_made = !graph.node_of(whole.id()).op->leaf;
  const bool is_all = v.layout().is_contiguous() && v.layout().offset == 0 &&
                      whole.layout().is_contiguous() && v.numel() == whole.numel();
  return is_made && is_all ? whole : copy(v);
}

}  // namespace

GradientTree::GradientTree(const std::vector<Tensor>& values, const std::vector<std::string>& names,
                           std::int64_t count, Device device)
    : count_(count), held_(std::bit_width(static_cast<std::uint64_t>(count - 1))) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Tensor v = stored(values[i]);
    shapes_.push_back(values[i].shape());
    leaves_.push_back({Parameter("gradient." + names[i], Array(v.shape(), v.dtype()), device), v});
    // The lowest level stores the leaves unchanged.
    for (std::size_t l = 0; l < held_.size(); ++l)
      held_[l].emplace_back("gradients." + std::to_string(1 << l) + "." + names[i],
                            Array(v.shape(), l == 0 ? v.dtype() : compute_type(v.dtype())), device);
  }
}

Tensor GradientTree::sum(Graph& graph, std::size_t which, std::uint64_t levels) const {
  const DType wide = compute_type(leaves_[which].target.dtype());
  Tensor s = cast(graph.param(leaves_[which].target), wide);
  for (std::size_t l = 0; l < held_.size(); ++l)
    if (levels >> l & 1) s = cast(graph.param(held_[l][which]), wide) + s;
  return s;
}

void GradientTree::compile(const CompileOptions& options) {
  for (std::size_t l = 0; l < held_.size(); ++l) {
    Graph graph;  // the program keeps it alive
    CompileOptions o = options;
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      const Tensor s =
          l == 0 ? copy(graph.param(leaves_[i].target)) : sum(graph, i, (std::uint64_t{1} << l) - 1);
      o.assign.push_back({held_[l][i], s});
    }
    programs_.push_back(tg::compile(graph, {}, o));
  }
}

void GradientTree::add(std::int64_t i) {
  programs_[static_cast<std::size_t>(std::countr_one(static_cast<std::uint64_t>(i)))].run();
}

std::vector<Tensor> GradientTree::sums(Graph& graph) const {
  std::vector<Tensor> all;
  for (std::size_t i = 0; i < leaves_.size(); ++i)
    all.push_back(view(sum(graph, i, static_cast<std::uint64_t>(count_ - 1)), shapes_[i]));
  return all;
}

std::size_t GradientTree::leaf_bytes() const {
  std::size_t bytes = 0;
  for (const Assign& a : leaves_) bytes += aligned_bytes(a.target.bytes());
  return bytes;
}

std::size_t GradientTree::bytes() const {
  std::size_t bytes = leaf_bytes();
  for (const std::vector<Parameter>& level : held_)
    for (const Parameter& p : level) bytes += aligned_bytes(p.bytes());
  return bytes;
}

}  // namespace tg::train
