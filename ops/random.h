// The attributes of random ops, for the ops and their kernels.
#pragma once

#include <tilegrad/core/base/attrs.h>

namespace tg {

// `stream` distinguishes the random nodes of a graph. The stream and the op's i64 [2] input {seed, step}
// determine the key of the node's numbers (core/base/rng.h). A gradient or a recomputation that needs the
// same numbers uses the same stream.
struct DropoutAttrs {
  double p;  // probability of dropping an element
  std::uint64_t stream;
  void fields(auto&& field) const { field("p", p), field("stream", stream, stream); }
};

// uniform and randint: a ≤ x < b. normal: mean a, standard deviation b. bernoulli: true with probability a.
struct RandomAttrs {
  Shape shape;
  DType dtype;
  double a, b;
  std::uint64_t stream;
  void fields(auto&& field) const {
    field("shape", shape), field("dtype", dtype), field("a", a), field("b", b);
    field("stream", stream, stream);
  }
};

}  // namespace tg
