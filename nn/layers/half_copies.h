// Copies of weights in a half type that last from step to step. An optimizer writes them together with the
// weights (Optimizer::update), so that a step casts no weights (docs/training.md).
#pragma once

#include <memory>
#include <vector>

#include <tilegrad/core/graph/graph.h>

namespace tg::nn {

class HalfCopies {
 public:
  explicit HalfCopies(DType dtype);  // bf16 or f16; throws DTypeError for another

  // cast(p, dtype), its gradient too, read from a copy that is allocated when p is first asked for. Before
  // each run of the graph's programs, a copy is made again if its weight has been changed by anything but the
  // run that wrote the copy too. Throws DTypeError unless p is f32 or f64.
  Tensor tensor(const Parameter& p, Graph& graph, std::source_location where);

  // The copy of each of these, for Optimizer::update; an empty Parameter where there is none.
  std::vector<Parameter> of(const std::vector<Parameter>& parameters) const;
  std::size_t bytes() const;  // of all copies

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tg::nn
