// Shared by reductions, their kernels and other ops.
#pragma once

#include <tilegrad/core/base/attrs.h>
#include <tilegrad/core/graph/tensor.h>

namespace tg {

struct ReduceAttrs {
  Axes axes;     // sorted, 0 … rank-1; empty for a reduction over no axis
  bool keepdim;  // reduced axes stay with size 1
  void fields(auto&& field) const { field("axes", axes), field("keepdim", keepdim, false); }
};

// y, a reduction of a tensor of this shape over these axes (kept or not), as a view of the shape.
Tensor stretch(const Tensor& y, const Shape& shape, const Axes& axes);

}  // namespace tg
