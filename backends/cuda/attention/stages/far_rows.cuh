// Far rows of a backward, with |ξ| beyond most_plain_lse (ops/attention_call.h). The plain kernels
// (plain.cuh) recompute their c and π, and compute their gradients. Tensor-core kernels treat far rows as P =
// 0, and launch_far_gradients() adds their gradients. P therefore depends neither on the rounding of ξ nor on
// the summation order of scores. Ordinary rows need no extra instructions.
#pragma once

#include "backends/cuda/attention/stages/score.cuh"
#include "backends/cuda/attention/workspace.h"

namespace tg::cuda::attention {

// P is exp((A − shift) − offset). The pair {shift, offset} is {ξ, 0} for ordinary rows, {c, log π} for far
// rows, and {0, ∞} if P is 0.
template <class C>
struct RowBase {
  C shift, offset;
};

template <class C>
__device__ __forceinline__ bool is_far(DType type, C lse) {
  return fabs(lse) > static_cast<C>(most_plain_lse(type)) && lse != -INFINITY;
}

// Stores the bases of `queries` rows of a head, starting at i0 (a multiple of 16). Marks groups of 16 rows
// that contain far rows. launch_normalize() then computes the bases of these groups. Called by all warps of a
// block.
template <class S, int queries>
__device__ __forceinline__ void mark_far_rows(const AttentionCall& x, const Workspace& work, int b, int h,
                                              int i0) {
  using C = compute_t<S>;
  const int lane = threadIdx.x % 32, groups = Workspace::far_groups(x);
  const i64 head = i64{b} * x.H + h;
  const C* const lse = static_cast<const C*>(x.lse) + head * x.L;
  RowBase<C>* const bases = static_cast<RowBase<C>*>(work.bases) + head * x.L;
  for (int r0 = threadIdx.x / 32 * 32; r0 < queries; r0 += blockDim.x) {
    const int r = r0 + lane, i = i0 + r;
    const bool inside = r < queries && i < x.L, far = inside && is_far(x.type, lse[i]);
    if (inside) bases[i] = lse[i] == -INFINITY ? RowBase<C>{0, INFINITY} : RowBase<C>{lse[i], 0};
    const unsigned those = __ballot_sync(~0u, far);
    if (inside && lane % 16 == 0) work.far[head * groups + i / 16] = (those >> lane & 0xffff) != 0;
  }
}

}  // namespace tg::cuda::attention
