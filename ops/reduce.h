// The attributes that reductions share with their kernels.
#pragma once

#include "core/attrs.h"

namespace tg {

struct ReduceAttrs {
  Axes axes;     // sorted, 0 … rank-1; empty for a reduction over no axis
  bool keepdim;  // reduced axes stay with size 1
  void fields(auto&& field) const { field("axes", axes), field("keepdim", keepdim); }
};

}  // namespace tg
