// Elements of a dtype that is only known at launch. This is for operands that are small or rarely read. A
// switch without divergence costs less than a kernel for each dtype.
#pragma once

#include "backends/cuda/kernels/elements.cuh"
#include "backends/cuda/tile/ptx_sm80.cuh"

namespace tg::cuda {

// Calls f(null pointer of the storage type) for the dtypes that are computed in C. Integers and booleans are
// computed in i64, floats in float or double.
template <class C, class F>
__device__ __forceinline__ auto with_stored(DType type, F f) {
  if constexpr (std::is_same_v<C, i64>) {
    switch (type) {
      case DType::i64:
        return f(static_cast<i64*>(nullptr));
      case DType::i32:
        return f(static_cast<int*>(nullptr));
      case DType::u8:
        return f(static_cast<unsigned char*>(nullptr));
      default:
        return f(static_cast<bool*>(nullptr));
    }
  } else {
    switch (type) {
      case DType::f64:
        return f(static_cast<double*>(nullptr));
      case DType::f32:
        return f(static_cast<float*>(nullptr));
      case DType::bf16:
        return f(static_cast<__nv_bfloat16*>(nullptr));
      default:
        return f(static_cast<__half*>(nullptr));
    }
  }
}

// Returns element `at` of data as C.
template <class C>
__device__ __forceinline__ C load_as(const void* data, DType type, i64 at) {
  return with_stored<C>(type, [&](auto* stored) {
    using S = pointee_t<decltype(stored)>;
    using Byte = std::conditional_t<std::is_same_v<S, bool>, unsigned char, S>;  // bool is read as a byte
    return static_cast<C>(widen(static_cast<const Byte*>(data)[at]));
  });
}
template <class C>
__device__ __forceinline__ void store_as(void* data, DType type, i64 at, C v) {
  with_stored<C>(type, [&](auto* stored) {
    static_cast<decltype(stored)>(data)[at] = narrow<pointee_t<decltype(stored)>>(v);
  });
}

// V consecutive elements that are read or written by one access.
template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
  T at[V];
};

// The number of elements in 16 bytes.
template <class S>
inline constexpr int pack_of = 16 / static_cast<int>(sizeof(S));

// V consecutive elements, stored as the words that were loaded. If they were 16-bit elements, the compiler
// would split the words directly after the load, and wait for them there.
template <class S, int V>
struct alignas(sizeof(S) * V < 16 ? sizeof(S) * V : 16) Words {
  unsigned at[sizeof(S) * V / 4];
};
template <class S, int V>
__device__ __forceinline__ void unpack(const Words<S, V>& words, compute_t<S> (&to)[V]) {
  if constexpr (std::is_same_v<S, __nv_bfloat16>) {
#pragma unroll
    for (int i = 0; i < V / 2; ++i)
      to[2 * i] = __uint_as_float(words.at[i] << 16),
             to[2 * i + 1] = __uint_as_float(words.at[i] & 0xffff0000u);
  } else {
    S from[V];
    memcpy(from, &words, sizeof from);
#pragma unroll
    for (int e = 0; e < V; ++e) to[e] = widen(from[e]);
  }
}
// The maximum of the elements. It is NaN only if all elements are NaN.
template <class S, int V>
__device__ __forceinline__ compute_t<S> largest(Words<S, V> words) {
  if constexpr (sizeof(S) == 2 && V > 2) {
#pragma unroll
    for (int i = 1; i < V / 2; ++i)
      words.at[0] = std::is_same_v<S, __half> ? ptx::max_f16x2(words.at[0], words.at[i])
                                              : ptx::max_bf16x2(words.at[0], words.at[i]);
    return largest(Words<S, 2>{words.at[0]});
  } else {
    compute_t<S> x[V];
    unpack(words, x);
#pragma unroll
    for (int e = 1; e < V; ++e) x[0] = fmax(x[0], x[e]);
    return x[0];
  }
}
// 16-bit elements are narrowed in pairs, by one instruction.
template <class S, int V>
__device__ __forceinline__ Words<S, V> packed(const compute_t<S> (&from)[V]) {
  Words<S, V> words;
  if constexpr (sizeof(S) == 2) {
#pragma unroll
    for (int i = 0; i < V / 2; ++i)
      words.at[i] = std::is_same_v<S, __half> ? ptx::cvt_f16x2(from[2 * i], from[2 * i + 1])
                                              : ptx::cvt_bf16x2(from[2 * i], from[2 * i + 1]);
  } else {
    S to[V];
#pragma unroll
    for (int e = 0; e < V; ++e) to[e] = narrow<S>(from[e]);
    memcpy(&words, to, sizeof to);
  }
  return words;
}

}  // namespace tg::cuda
