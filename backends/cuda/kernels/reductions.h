// The interface of the reduction kernels for other code.
#pragma once

#include "backends/cuda/runtime/kernel.h"
#include "core/graph/op_attrs.h"

namespace tg::cuda {

// out[i] = Σ_p partial[p·step + i] for i < n, p < parts, always in ascending order of p. partial contains
// doubles if `wide`, otherwise floats. step > 1 or parts = 1. out is contiguous.
void sum_parts(const Stream& s, const void* partial, bool wide, long long n, long long parts, long long step,
               const Arg& out);

// How the reduction kernels iterate over rows of adjacent elements. A kernel that reduces values which are
// not in memory (backends/cuda/jit/fused_reduction.cpp) adds them in the same order. A row consists of packs
// of `pack` adjacent elements, and is divided into `pieces`. Piece n begins at pack number packs · n /
// pieces. A team of threads processes a piece: thread t processes its packs t, t + threads, …. If there is
// more than one piece, a second launch combines them, with a team per row.
struct RowOrder {
  int threads;  // a power of two: less than a warp, or whole warps
  int pack;
  enum {
    in_lanes,  // a total for each position in a pack; then halves of them are combined
    by_packs,  // each pack separately, from left to right; then packs
    in_turn    // one element after another
  } way;
  std::int64_t pieces = 1;
  int merging = 1;  // threads per team in the second launch
};

// x: the tensor to reduce; its address does not matter. y: the result, as `reduce` specifies. `in_packs`:
// whether the kernel of that reduction reads packs of floating-point elements.
RowOrder row_order(const Arg& x, const Arg& y, const ReduceAttrs& reduce, bool in_packs, const Gpu& gpu);

}  // namespace tg::cuda
