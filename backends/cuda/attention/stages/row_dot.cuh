// Row-wise dot products (a ⊛ b).sum. Several lanes compute one row. Also computes u for a tile of queries.
#pragma once

#include "backends/cuda/attention/workspace.h"
#include "backends/cuda/kernels/elements.cuh"

namespace tg::cuda::attention {

// Number of lanes that share a row of `size` elements, with V elements per load: 8, 16 or 32.
template <int V>
__device__ __forceinline__ int lanes_of_row(int size) {
  return size <= 8 * V ? 8 : size <= 16 * V ? 16 : 32;
}

template <class S, int V>
struct alignas(V * sizeof(S)) Piece {
  S e[V];
};
// This lane's part of (a ⊛ b·unit).sum. `lanes` lanes share rows of `size` elements, with V elements per
// load.
template <int V, class A, class B>
__device__ compute_t<A> partial_dot(const A* a, const B* b, int size, int lane, int lanes,
                                    compute_t<A> unit = 1) {
  compute_t<A> sum = 0;
  for (int n = lane * V; n < size; n += lanes * V) {
    const Piece<A, V> x = *reinterpret_cast<const Piece<A, V>*>(a + n);
    const Piece<B, V> y = *reinterpret_cast<const Piece<B, V>*>(b + n);
#pragma unroll
    for (int e = 0; e < V; ++e) sum += widen(x.e[e]) * (widen(y.e[e]) * unit);
  }
  return sum;
}

// The sum over the lanes that share a row.
template <class C>
__device__ __forceinline__ C sum_over(C own, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) own += __shfl_xor_sync(~0u, own, step);
  return own;
}

// Computes u = (O ⊛ z_O).sum − z_ξ [Stratos, Lemma 2.1] for `queries` rows of a head, starting at i0. One
// lane per row stores u and calls f(r, row, is_inside, u). `row` is the index among the rows of all heads.
// z_O has `terms` values per element, is read V values at a time, and is multiplied by `unit`. Called by a
// block of 256 threads.
template <class S, int V, int queries, int terms, class Z, class F>
__device__ __forceinline__ void for_each_u(const AttentionCall& x, const Workspace& work, int b, int h,
                                           int i0, compute_t<S> unit, F&& f) {
  using C = compute_t<S>;
  const S* o = x.o.at<S>(b, h);
  const Z* z = x.z_o.at<Z>(b, h);
  const int lane = threadIdx.x % 32, lanes = lanes_of_row<V>(x.dv), rows = 32 / lanes;
  for (int r0 = threadIdx.x / 32 * rows; r0 < queries; r0 += 8 * rows) {
    const int r = r0 + lane / lanes, i = i0 + r;
    const bool inside = r < queries && i < x.L;
    C u = 0;
#pragma unroll
    for (int n = 0; n < terms; ++n)
      if (inside)
        u += partial_dot<V>(o + i * x.o.row, z + i * x.z_o.row + n * (x.z_o.row / 2), x.dv, lane % lanes,
                            lanes, unit);
    u = sum_over(u, lanes);
    if (lane % lanes > 0 || r >= queries) continue;
    const i64 row = (i64{b} * x.H + h) * x.L + i;
    if (inside && x.z_lse) u -= static_cast<const C*>(x.z_lse)[row];
    if (inside) static_cast<C*>(work.u)[row] = u;
    f(r, row, inside, u);
  }
}

}  // namespace tg::cuda::attention
