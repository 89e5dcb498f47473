// layer_norm and rms_norm of short rows, each by one warp: no barrier between the threads of a row, and the
// next row is on its way while one is worked on. weight and bias are read from shared memory, for registers
// are what limits the warps of a multiprocessor.
#pragma once

#include "backends/cuda/kernels/norm.cuh"

namespace tg::cuda {

inline constexpr int short_threads = 256, short_warps = short_threads / 32;

// A row, of those that are the same distance apart: finding others takes a call, and registers with it.
inline bool evenly_spaced(const Rows& rows) {
  return rows.outer.rank <= 1;
}
template <class S>
__device__ __forceinline__ S* even_row(const Rows& rows, i64 r) {
  return static_cast<S*>(rows.data) + (rows.outer.rank == 1 ? r * rows.outer.stride[0] : 0);
}

template <class C>
__device__ __forceinline__ C sum_of_warp(C v) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
  return v;
}

// to[i] = v[i], or `otherwise` where there is none; the block's threads share the work.
template <class C>
__device__ __forceinline__ void stage(C* to, const NormVector& v, int n, C otherwise) {
  for (int i = threadIdx.x; i < n; i += short_threads)
    to[i] = v.data ? load_as<C>(v.data, v.type, i * v.step) : otherwise;
}

// A lane's share of a row of n ≤ 32·V·K elements: packs of V, 32 packs apart. `here(k)`: there is a pack k.
template <class S, int V, int K>
struct ShortRow {
  Pack<S, V> pack[K];

  static __device__ __forceinline__ int first(int k) { return (threadIdx.x % 32 + k * 32) * V; }
  static __device__ __forceinline__ bool here(int k, int n) { return first(k) < n; }

  __device__ __forceinline__ void load(const S* row, int n) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (here(k, n)) pack[k] = *reinterpret_cast<const Pack<S, V>*>(row + first(k));
  }
  __device__ __forceinline__ void store(S* row, int n) const {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (here(k, n)) *reinterpret_cast<Pack<S, V>*>(row + first(k)) = pack[k];
  }
};

// f(i, element i of the row) for the lane's elements; i counts them.
template <int V, int K, class F>
__device__ __forceinline__ void each_of_short(int n, F f) {
#pragma unroll
  for (int k = 0; k < K; ++k)
    if (ShortRow<float, V, K>::here(k, n))
#pragma unroll
      for (int e = 0; e < V; ++e) f(k, e, ShortRow<float, V, K>::first(k) + e);
}

// Calls f with integral constants V and K for rows of n elements of a type, and says true; false where they
// are too long. A lane has all of a row's elements in registers, and as few idle places as may be.
template <class S, class F>
bool with_short(i64 n, F f) {
  const auto take = [&](auto V, auto K) {
    if (n > 32 * V * K || n % V != 0) return false;
    f(V, K);
    return true;
  };
  using std::integral_constant;
  constexpr integral_constant<int, 3> three;
  constexpr integral_constant<int, 4> four;
  if constexpr (sizeof(S) == 8) {
    return false;
  } else if constexpr (sizeof(S) == 4) {
    constexpr integral_constant<int, 6> six;
    constexpr integral_constant<int, 8> eight;
    return take(four, three) || take(four, four) || take(four, six) || take(four, eight);
  } else {
    constexpr integral_constant<int, 2> two;
    constexpr integral_constant<int, 8> eight;
    // 384 = 32·4·3: no lane is idle.
    return (n > 256 && take(four, three)) || take(eight, two) || take(eight, three) || take(eight, four);
  }
}

}  // namespace tg::cuda
