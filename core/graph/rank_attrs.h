// What ops have in common in which ranks exchange data (ops/ranks.cpp): the compiler and the backends read
// it.
#pragma once

#include <tilegrad/core/graph/op.h>

namespace tg {

struct RankAttrs {
  int ranks;          // in the group; which of them this is no attribute says: all have equal programs
  int shift = 0;      // of shift_ranks: rank r gets the value of rank r − shift
  bool wide = false;  // of sums: the result of half types is f32
  void fields(auto&& field) const {
    field("ranks", ranks), field("shift", shift, 0), field("wide", wide, false);
  }
};

extern const Op &sum_ranks_op, &gather_ranks_op, &scatter_sum_op, &exchange_ranks_op, &shift_ranks_op,
    &own_piece_op;

// The attributes of an op that needs the ranks' Communicator; null for all others.
inline const RankAttrs* rank_attrs_of(const Op& op, const Attrs& attrs) {
  for (const Op* o :
       {&sum_ranks_op, &gather_ranks_op, &scatter_sum_op, &exchange_ranks_op, &shift_ranks_op, &own_piece_op})
    if (&op == o) return &attrs.as<RankAttrs>();
  return nullptr;
}

}  // namespace tg
