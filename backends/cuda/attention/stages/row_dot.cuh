// (a ⊛ b).sum of rows, each shared by some lanes of a warp.
#pragma once

#include "backends/cuda/kernels/elements.cuh"

namespace tg::cuda::attention {

// Lanes for a row of `size`, V elements at a time: 8, 16 or 32.
template <int V>
__device__ __forceinline__ int lanes_of_row(int size) {
  return size <= 8 * V ? 8 : size <= 16 * V ? 16 : 32;
}

template <class S, int V>
struct alignas(V * sizeof(S)) Piece {
  S e[V];
};
// This lane's part of (a ⊛ b·unit).sum, rows of `size` shared by `lanes` lanes, V elements at a time.
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

// The sum over lanes that share a row.
template <class C>
__device__ __forceinline__ C sum_over(C own, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) own += __shfl_xor_sync(~0u, own, step);
  return own;
}

}  // namespace tg::cuda::attention
