// Elements on the device: conversion of storage types to compute types, and operands with any strides.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <tilegrad/core/base/error.h>
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

using i64 = long long;

// The compute type of a storage type: float for 16-bit types, i64 for integers and booleans.
template <class S>
using compute_t = std::conditional_t<std::is_integral_v<S>, i64,
                                     std::conditional_t<std::is_same_v<S, double>, double, float>>;

template <class S>
__device__ __forceinline__ compute_t<S> widen(S x) {
  return static_cast<compute_t<S>>(x);
}
__device__ __forceinline__ float widen(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float widen(__half x) {
  return __half2float(x);
}

template <class S, class C>
__device__ __forceinline__ S narrow(C x) {
  if constexpr (std::is_same_v<S, bool>)
    return x != C(0);
  else if constexpr (std::is_same_v<S, __nv_bfloat16>)
    return __float2bfloat16_rn(odd_float(x));
  else if constexpr (std::is_same_v<S, __half>)
    return __float2half_rn(odd_float(x));
  else
    return static_cast<S>(x);
}

[[noreturn, gnu::noinline]] inline void refuse(DType t) {
  throw DeviceError("no CUDA kernel for " + std::string(name_of(t)));
}

// Calls f with a null pointer of a 16-bit dtype's storage type.
template <class F>
void with_half(DType t, F&& f) {
  t == DType::bf16 ? f(static_cast<__nv_bfloat16*>(nullptr)) : f(static_cast<__half*>(nullptr));
}
template <class F>
void with_float(DType t, F&& f) {
  if (t == DType::f64) return f(static_cast<double*>(nullptr));
  if (t == DType::f32) return f(static_cast<float*>(nullptr));
  if (t != DType::bf16 && t != DType::f16) refuse(t);
  with_half(t, f);
}
template <class F>
void with_any(DType t, F&& f) {
  if (t == DType::i64) return f(static_cast<i64*>(nullptr));
  if (t == DType::i32) return f(static_cast<int*>(nullptr));
  if (t == DType::u8) return f(static_cast<unsigned char*>(nullptr));
  if (t == DType::boolean) return f(static_cast<bool*>(nullptr));
  with_float(t, f);
}
// The storage type that F's argument points to.
template <class P>
using pointee_t = std::remove_pointer_t<std::decay_t<P>>;

// A layout as a kernel's argument.
struct Strides {
  int rank = 0;
  i64 size[max_rank];
  i64 stride[max_rank];

  Strides() = default;
  explicit Strides(const Layout& l) : rank(l.rank()) {
    for (int a = 0; a < rank; ++a) size[a] = l.shape[a], stride[a] = l.strides[a];
  }
  // Returns the offset in elements of row-major element i.
  __host__ __device__ i64 offset(i64 i) const {
    i64 at = 0;
    for (int a = rank - 1; a > 0; --a) {
      at += i % size[a] * stride[a];
      i /= size[a];
    }
    return rank > 0 ? at + i * stride[0] : 0;
  }
  // Returns the offset of element i for a 32-bit i, which is several times faster.
  __device__ i64 offset(unsigned i) const {
    i64 at = 0;
    for (int a = rank - 1; a > 0; --a) {
      const auto n = static_cast<unsigned>(size[a]);
      at += i64(i % n) * stride[a];
      i /= n;
    }
    return rank > 0 ? at + i64(i) * stride[0] : 0;
  }
};

inline unsigned blocks_for(i64 n, i64 per_block) {
  const i64 blocks = (n + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff);
}

}  // namespace tg::cuda
