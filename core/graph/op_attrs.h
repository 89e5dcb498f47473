// Attributes of ops of ops/ that the compiler and the backends read too: those of reductions, and those of
// ops in which ranks exchange data.
#pragma once

#include <tilegrad/core/graph/op.h>

namespace tg {

// What ops that reduce axes have in common (ops/reduce.cpp).
struct ReduceAttrs {
  Axes axes;     // sorted, 0 … rank-1; empty for a reduction over no axis
  bool keepdim;  // reduced axes stay with size 1
  void fields(auto&& field) const { field("axes", axes), field("keepdim", keepdim, false); }
};

// What ops have in common in which ranks exchange data (ops/ranks.cpp).
struct RankAttrs {
  int ranks;          // in the group; which of them this is no attribute says: all have equal programs
  int shift = 0;      // of ppermute: rank r gets the value of rank r − shift
  bool wide = false;  // of sums: the result of half types is f32
  void fields(auto&& field) const {
    field("ranks", ranks), field("shift", shift, 0), field("wide", wide, false);
  }
};

// The attributes of an op that needs the ranks' Communicator; null for all others.
inline const RankAttrs* rank_attrs_of(const Op& op, const Attrs& attrs) {
  return op.collective == Collective::none ? nullptr : &attrs.as<RankAttrs>();
}

}  // namespace tg
