// What others use of the kernels for reductions.
#pragma once

#include "backends/cuda/runtime/kernel.h"
#include "core/graph/op_attrs.h"

namespace tg::cuda {

// out[i] = Σ_p partial[p·step + i] for i < n, p < parts, always in ascending order of p; partial holds
// doubles if `wide`, else floats; step > 1 or parts = 1; out is contiguous.
void sum_parts(const Stream& s, const void* partial, bool wide, long long n, long long parts, long long step,
               const Arg& out);

// How the kernels for reductions go through rows that are neighbours in memory. Whoever goes through numbers
// that are nowhere in memory (backends/cuda/jit/reduced_chain.cpp) adds them up in the same order. A team of
// threads has a row, or one of its `pieces`, which begin at packs · piece / pieces: packs of `pack`
// neighbours, of which thread t takes number t, t + threads, … A second launch, with a team for each row,
// combines pieces.
struct RowOrder {
  int threads;  // a power of two: less than a warp, or whole warps
  int pack;
  enum {
    in_lanes,  // a total for each place in a pack; then halves of them are combined
    by_packs,  // each pack by itself, from left to right; then packs
    in_turn    // one number after the other
  } way;
  std::int64_t pieces = 1;
  int merging = 1;  // threads of the second launch's teams
};

// x: the tensor that is reduced, whose address does not matter; y: the result, as `reduce` says. `in_packs`:
// whether that reduction's kernel reads packs of floating-point numbers.
RowOrder row_order(const Arg& x, const Arg& y, const ReduceAttrs& reduce, bool in_packs, const Gpu& gpu);

}  // namespace tg::cuda
