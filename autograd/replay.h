// Replay records nodes of a graph again, in the same graph or in a different one. Some tensors or ops can be
// replaced. For example, Replay replaces fused ops by their decompositions, or makes a call twice on the same
// numbers.
#pragma once

#include <map>

#include <tilegrad/core/graph/graph.h>

namespace tg {

class Replay {
 public:
  // Returns the tensors that replace a node, computed from its operands. If it returns nothing, the node is
  // kept.
  using Substitute = std::function<std::optional<std::vector<Tensor>>(const Node&, std::span<const Tensor>)>;

  Replay(const Graph& from, Graph& to, Substitute substitute = {})
      : from_(from), to_(to), substitute_(std::move(substitute)) {}

  void put(const Tensor& old, const Tensor& now) { now_[old.id()] = now; }
  // Records the nodes first … last − 1. Their inputs must have been replayed, or replaced by put(). If both
  // graphs are the same, all other inputs are used unchanged. Attributes are kept, including the streams of
  // random ops, so a copy draws the same random numbers. Recompute segments and custom gradients are also
  // kept.
  void run(NodeId first, NodeId last);
  // Stops copying custom gradients: later replayed nodes are differentiated one by one.
  void leave_custom_gradients() { keeps_custom_ = false; }
  // The replacement of an old tensor.
  Tensor operator()(const Tensor& old) const { return now(old.id()); }

 private:
  Tensor now(ValueId v) const;
  std::vector<Tensor> record(const Node& node, std::span<const Tensor> in);
  void add_custom(const CustomGradient& old);

  const Graph& from_;
  Graph& to_;
  const Substitute substitute_;
  bool keeps_custom_ = true;
  std::map<ValueId, Tensor> now_;
  std::map<NodeId, NodeId> first_node_;  // first new node for an old one
  std::map<int, int> segments_;
};

// Returns a substitution that replaces every node of the op by its decomposition. The op must have one.
Replay::Substitute decomposed(const Op& op);
// Does the same for every op that has a decomposition. Counts the replaced nodes.
Replay::Substitute decomposed_all(int& count);

}  // namespace tg
