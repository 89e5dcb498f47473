// Context parallelism: a model over sequences whose tokens are divided among ranks.
#pragma once

#include <map>

#include <tilegrad/core/graph/graph.h>

namespace tg::nn {

// While it exists, layers that this thread calls for `graph` process only the rank's tokens, in the order of
// ring_positions (ops/ring_attention.h). Their inputs contain only these positions. The full sequences are
// `ranks` times as long. Attention is ring attention, and positions are those of the full sequence. Only
// attention needs communication.
//
// A loss over the rank's tokens is part of the total loss. Each rank must compute a mean over the same number
// of tokens. The total loss is then the all_reduce of these means, divided by the number of ranks. The
// gradients are computed in the same way.
//
// Layers throw Error for a call with a cache, and for dropout of attention weights in training.
class ContextParallel {
 public:
  // With one rank, it has no effect. Throws ShapeError unless `ranks` is 1 to most_ring_ranks.
  ContextParallel(Graph& graph, int ranks);
  // Restores the previous ContextParallel of this thread.
  ~ContextParallel();
  ContextParallel(const ContextParallel&) = delete;
  ContextParallel& operator=(const ContextParallel&) = delete;

  // For layers: returns the number of ranks among which the sequences of a graph are divided.
  static int ranks(const Graph& graph);
  // For layers: returns the positions of the rank's `length` tokens, i64 [length]. Undefined if the rank has
  // all tokens, whose positions are 0, 1, ….
  static Tensor positions(Graph& graph, std::int64_t length);

 private:
  static ContextParallel* of(const Graph& graph);

  Graph& graph_;
  int ranks_;
  std::map<std::int64_t, Tensor> positions_;  // by length
  ContextParallel* outer_;
};

}  // namespace tg::nn
