// Shared by reductions, their kernels and other ops.
#pragma once

#include <tilegrad/core/graph/tensor.h>
#include "core/graph/op_attrs.h"

namespace tg {

// y, a reduction of a tensor of this shape over these axes (kept or not), as a view of the shape.
Tensor stretch(const Tensor& y, const Shape& shape, const Axes& axes);

}  // namespace tg
