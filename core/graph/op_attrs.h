// Attributes of reductions and of collective ops. The compiler and the backends also read them.
#pragma once

#include <tilegrad/core/graph/op.h>

namespace tg {

// Attributes of all ops that reduce axes (ops/reduce.cpp).
struct ReduceAttrs {
  Axes axes;     // sorted, 0 … rank-1; empty for a reduction over no axis
  bool keepdim;  // reduced axes stay with size 1
  void fields(auto&& field) const { field("axes", axes), field("keepdim", keepdim, false); }
};

// Attributes of all collective ops (ops/ranks.cpp).
struct RankAttrs {
  int ranks;          // no attribute depends on the rank, because all programs are equal
  int shift = 0;      // for ppermute: rank r gets the value of rank r − shift
  bool wide = false;  // for sums: 16-bit inputs give an f32 result
  void fields(auto&& field) const {
    field("ranks", ranks), field("shift", shift, 0), field("wide", wide, false);
  }
};

// The attributes of an op that needs a Communicator; null for all other ops.
inline const RankAttrs* rank_attrs_of(const Op& op, const Attrs& attrs) {
  return op.collective == Collective::none ? nullptr : &attrs.as<RankAttrs>();
}

}  // namespace tg
