// What ops that reduce axes have in common: the compiler reads it too (core/compile/reduced_chains.h).
#pragma once

#include <tilegrad/core/base/attrs.h>

namespace tg {

struct ReduceAttrs {
  Axes axes;     // sorted, 0 … rank-1; empty for a reduction over no axis
  bool keepdim;  // reduced axes stay with size 1
  void fields(auto&& field) const { field("axes", axes), field("keepdim", keepdim, false); }
};

}  // namespace tg
