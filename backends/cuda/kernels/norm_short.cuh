// layer_norm and rms_norm of short rows, with one warp for each row. The threads of a row need no barrier.
// The next row is loaded while the current row is processed. Registers limit the warps of a multiprocessor,
// so `weight` and `bias` are read from shared memory.
#pragma once

#include "backends/cuda/kernels/norm.cuh"

namespace tg::cuda {

inline constexpr int short_threads = 256, short_warps = short_threads / 32;

// Whether rows have a constant stride, and the address of row r in that case. Other layouts need a function
// call, which costs registers.
inline bool evenly_spaced(const RowLayout& rows) {
  return rows.outer.rank <= 1;
}
template <class S>
__device__ __forceinline__ S* even_row(const RowLayout& rows, i64 r) {
  return static_cast<S*>(rows.data) + (rows.outer.rank == 1 ? r * rows.outer.stride[0] : 0);
}

template <class C>
__device__ __forceinline__ C sum_of_warp(C v) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
  return v;
}

// A lane's share of a row with n ≤ 32·V·K elements. It consists of packs of V elements, at a distance of 32
// packs.
template <class S, int V, int K>
struct ShortRow {
  Words<S, V> pack[K];

  // Calls f(k, index of the pack in the row) for the lane's packs.
  template <class F>
  static __device__ __forceinline__ void each(int n, F f) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (number(k) * V < n) f(k, number(k));
  }
  __device__ __forceinline__ void load(const S* row, int n) {
    each(n, [&](int k, int p) { pack[k] = reinterpret_cast<const Words<S, V>*>(row)[p]; });
  }
  static __device__ __forceinline__ void store(S* row, int k, const compute_t<S> (&x)[V]) {
    reinterpret_cast<Words<S, V>*>(row)[number(k)] = packed<S>(x);
  }

 private:
  static __device__ __forceinline__ int number(int k) {
    return threadIdx.x % 32 + k * 32;
  }
};

// Calls f with integral constants V and K for rows of n elements of a type, and returns true. Returns false
// if the rows are too long. A lane holds its share of a row in registers, with as few idle slots as possible.
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
