// The interface of the reduction kernels for other code.
#pragma once

#include "backends/cuda/runtime/kernel.h"
#include "core/graph/op_attrs.h"

namespace tg::cuda {

// Computes out[i] = Σ_p partial[p·step + i] for i < n and p < parts, in ascending order of p. `partial`
// contains doubles if `wide`, otherwise floats. `step` must be above 1 unless `parts` is 1. `out` is
// contiguous.
void sum_parts(const Stream& s, const void* partial, bool wide, long long n, long long parts, long long step,
               const Arg& out);

// How the reduction kernels iterate over rows of adjacent elements. A kernel that reduces values before they
// are stored (backends/cuda/jit/fused_reduction.cpp) adds them in the same order. A row consists of packs of
// `pack` adjacent elements, and is divided into `pieces` pieces. Piece n begins at pack number packs · n /
// pieces. A team of threads processes a piece: thread t processes its packs t, t + threads, …. If there is
// more than one piece, a second launch combines them. Each row then has one team.
struct RowOrder {
  int threads;  // a power of two: less than a warp, or whole warps
  int pack;
  enum {
    in_lanes,  // one total for each position in a pack; these totals are then combined in halves
    by_packs,  // one total for each pack, from left to right; then the totals
    in_turn    // one element after another
  } way;
  std::int64_t pieces = 1;
  int merging = 1;  // threads per team in the second launch
};

// `x` is the tensor to reduce. Its address does not matter. `y` is the result, as `reduce` specifies.
// `in_packs` states whether the kernel of this reduction reads packs of floating-point elements.
RowOrder row_order(const Arg& x, const Arg& y, const ReduceAttrs& reduce, bool in_packs, const Gpu& gpu);

}  // namespace tg::cuda
