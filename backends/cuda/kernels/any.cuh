// Elements of a dtype that only the launch knows, for operands that are small or rarely read: a switch that
// goes the same way for all threads costs less than a kernel per dtype.
#pragma once

#include "backends/cuda/kernels/elements.cuh"
#include "backends/cuda/tile/ptx_sm80.cuh"

namespace tg::cuda {

// Element `at` of data as C: double or float from any float type, i64 from integers and booleans.
template <class C>
__device__ __forceinline__ C load_as(const void* data, DType type, i64 at) {
  if constexpr (std::is_same_v<C, i64>) {
    switch (type) {
      case DType::i64:
        return static_cast<const i64*>(data)[at];
      case DType::i32:
        return static_cast<const int*>(data)[at];
      default:
        return static_cast<const unsigned char*>(data)[at];
    }
  } else {
    switch (type) {
      case DType::f64:
        return static_cast<C>(static_cast<const double*>(data)[at]);
      case DType::f32:
        return static_cast<C>(static_cast<const float*>(data)[at]);
      case DType::bf16:
        return static_cast<C>(widen(static_cast<const __nv_bfloat16*>(data)[at]));
      default:
        return static_cast<C>(widen(static_cast<const __half*>(data)[at]));
    }
  }
}

template <class C>
__device__ __forceinline__ void store_as(void* data, DType type, i64 at, C v) {
  if constexpr (std::is_same_v<C, i64>) {
    switch (type) {
      case DType::i64:
        static_cast<i64*>(data)[at] = v;
        return;
      case DType::i32:
        static_cast<int*>(data)[at] = static_cast<int>(v);
        return;
      case DType::u8:
        static_cast<unsigned char*>(data)[at] = static_cast<unsigned char>(v);
        return;
      default:
        static_cast<bool*>(data)[at] = v != 0;
    }
  } else {
    switch (type) {
      case DType::f64:
        static_cast<double*>(data)[at] = static_cast<double>(v);
        return;
      case DType::f32:
        static_cast<float*>(data)[at] = static_cast<float>(v);
        return;
      case DType::bf16:
        static_cast<__nv_bfloat16*>(data)[at] = narrow<__nv_bfloat16>(v);
        return;
      default:
        static_cast<__half*>(data)[at] = narrow<__half>(v);
    }
  }
}

// V consecutive elements, read or written in one piece.
template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
  T at[V];
};

// The number of elements in 16 bytes.
template <class S>
inline constexpr int pack_of = 16 / static_cast<int>(sizeof(S));

// V consecutive elements as the words that were loaded. If they were 16-bit elements, the compiler would
// split the words right after the load, and so wait for them there.
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
// The largest of them; NaN only if all are.
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
// Halves are narrowed two by two, in one instruction.
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
