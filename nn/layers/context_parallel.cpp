#include <tilegrad/nn/layers/context_parallel.h>

#include <limits>
#include <string>

#include <tilegrad/ops/ring_attention.h>

namespace tg::nn {

namespace {

thread_local ContextParallel* innermost_division = nullptr;

}  // namespace

ContextParallel::ContextParallel(Graph& graph, int ranks)
    : graph_(graph), ranks_(ranks), outer_(innermost_division) {
  if (ranks < 1 || ranks > most_ring_ranks)
    throw ShapeError("[ContextParallel] the number of ranks is " + std::to_string(ranks) +
                     ", expected 1 to " + std::to_string(most_ring_ranks));
  innermost_division = this;
}

ContextParallel::~ContextParallel() {
  innermost_division = outer_;
}

ContextParallel* ContextParallel::of(const Graph& graph) {
  ContextParallel* c = innermost_division;
  while (c && c->graph_ != graph) c = c->outer_;
  return c;
}

int ContextParallel::ranks(const Graph& graph) {
  const ContextParallel* const c = of(graph);
  return c ? c->ranks_ : 1;
}

Tensor ContextParallel::positions(Graph& graph, std::int64_t length) {
  ContextParallel* const c = of(graph);
  if (!c || c->ranks_ == 1) return {};
  if (length < 0 || length > std::numeric_limits<std::int32_t>::max() / c->ranks_)
    throw ShapeError("[ContextParallel] " + std::to_string(length) + " tokens on each of " +
                     std::to_string(c->ranks_) + " ranks, expected 0 to 2^31 of all");
  Tensor& all = c->positions_[length];
  if (!all.defined()) {
    const SegmentScope outside(-1);  // the positions are not recomputed with the segment that used them first
    all = ring_positions(graph, c->ranks_, length * c->ranks_);
  }
  return all;
}

}  // namespace tg::nn
