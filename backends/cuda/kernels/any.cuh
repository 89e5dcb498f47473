// Elements whose dtype only the launch knows, for operands that are small or rarely read: a switch that is
// the same for all threads costs less than a kernel per dtype.
#pragma once

#include "backends/cuda/kernels/elements.cuh"

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
        static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(static_cast<float>(v));
        return;
      default:
        static_cast<__half*>(data)[at] = __float2half_rn(static_cast<float>(v));
    }
  }
}

// V neighbours that lie in a row, read or written in one piece.
template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
  T at[V];
};

// Elements that 16 bytes hold.
template <class S>
inline constexpr int pack_of = 16 / static_cast<int>(sizeof(S));

}  // namespace tg::cuda
