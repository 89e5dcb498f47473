// A model over sequences whose tokens are divided among ranks (context parallel).
#pragma once

#include <map>

#include <tilegrad/core/graph/graph.h>

namespace tg::nn {

// While alive, layers called on `graph` on this thread have the rank's own tokens, in the order of
// ring_positions (ops/ring_attention.h): the rows of their input are those positions of sequences that are
// `ranks` times as long. Attention is ring attention, and positions are those of the whole sequence. Layers
// other than attention need no exchange.
//
// A loss of the rank's tokens is a part of the loss of all: with a mean over as many tokens on each rank,
// the loss, and gradients of parameters, are the all_reduce of the ranks' ones divided by their number.
//
// Layers throw Error for a call with a cache, and for dropout of attention weights in training.
class ContextParallel {
 public:
  // One rank changes nothing. Throws ShapeError unless there are 1 to most_ring_ranks.
  ContextParallel(Graph& graph, int ranks);
  ~ContextParallel();
  ContextParallel(const ContextParallel&) = delete;
  ContextParallel& operator=(const ContextParallel&) = delete;

  // For layers: among how many ranks the sequences of a graph are divided.
  static int ranks(const Graph& graph);
  // The positions of the rank's `length` tokens, i64 [length]; undefined if it has all, which are 0, 1, ….
  static Tensor positions(Graph& graph, std::int64_t length);

 private:
  static ContextParallel* of(const Graph& graph);

  Graph& graph_;
  int ranks_;
  std::map<std::int64_t, Tensor> positions_;  // by length
  ContextParallel* outer_;
};

}  // namespace tg::nn
