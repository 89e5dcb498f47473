// Replay: records nodes of a graph once more, in another graph or in the same one, with other tensors or
// other ops in their place: decompositions instead of fused ops, the same call twice on the same numbers.
#pragma once

#include <map>

#include <tilegrad/core/graph/graph.h>

namespace tg {

class Replay {
 public:
  // What to record instead of a node, from its operands; nothing keeps the node as it is.
  using Substitute = std::function<std::optional<std::vector<Tensor>>(const Node&, std::span<const Tensor>)>;

  Replay(const Graph& from, Graph& to, Substitute substitute = {})
      : from_(from), to_(to), substitute_(std::move(substitute)) {}

  void put(const Tensor& old, const Tensor& now) { now_[old.id()] = now; }
  // Records the nodes first … last-1. What they read must have been replayed or put before, except that
  // within one graph everything else stands for itself. Attributes are kept, streams of random ops included:
  // a copy draws the same numbers. Recompute segments and custom gradients come along.
  void run(NodeId first, NodeId last);
  // From now on custom gradients stay behind: what is replayed is differentiated node by node.
  void leave_custom_gradients() { keeps_custom_ = false; }
  // The tensor that now stands for an old one.
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
  std::map<NodeId, NodeId> first_node_;  // what was recorded for an old node starts here
  std::map<int, int> segments_;
};

// Puts the decomposition in the place of every node of the op, which must have one.
Replay::Substitute decomposed(const Op& op);
// The same for every op that has a decomposition; counts them.
Replay::Substitute decomposed_all(int& count);

}  // namespace tg
