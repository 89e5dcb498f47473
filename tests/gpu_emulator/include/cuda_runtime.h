// Replaces CUDA's header of the same name. Defines CUDA C++ for an ordinary compiler, as far as the kernels
// use it.
#pragma once

#include <cuda_runtime_api.h>
#include <math.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/early_launch.h"

// ---- keywords ----

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__  // libstdc++ also uses this word in attributes
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static thread_local
#define TG_DYNAMIC_SHARED(name, alignment) unsigned char* const name = tg::emulator::dynamic_shared()

#define threadIdx (tg::emulator::here.thread)
#define blockIdx (tg::emulator::here.block)
#define blockDim (tg::emulator::here.block_size)
#define gridDim (tg::emulator::here.grid_size)
constexpr int warpSize = 32;

// ---- vector types ----

#define TG_VECTORS(name, type, n)                                 \
  struct alignas(sizeof(type) * 2) name##2 {                      \
    type x, y;                                                    \
  };                                                              \
  struct alignas(sizeof(type) * n) name##4 {                      \
    type x, y, z, w;                                              \
  };                                                              \
  inline name##2 make_##name##2(type x, type y) {                 \
    return {x, y};                                                \
  }                                                               \
  inline name##4 make_##name##4(type x, type y, type z, type w) { \
    return {x, y, z, w};                                          \
  }
TG_VECTORS(int, int, 4)
TG_VECTORS(uint, unsigned, 4)
TG_VECTORS(float, float, 4)
TG_VECTORS(double, double, 2)
TG_VECTORS(longlong, long long, 2)
TG_VECTORS(ulonglong, unsigned long long, 2)
TG_VECTORS(short, short, 4)
TG_VECTORS(ushort, unsigned short, 4)
TG_VECTORS(uchar, unsigned char, 4)
#undef TG_VECTORS

// ---- common operations of threads ----

inline void __syncthreads() {
  tg::emulator::meet_block();
}
inline int __syncthreads_count(int predicate) {
  return tg::emulator::meet_block(predicate != 0);
}
inline int __syncthreads_or(int predicate) {
  return tg::emulator::meet_block(predicate != 0) > 0;
}
inline int __syncthreads_and(int predicate) {
  return tg::emulator::meet_block(predicate == 0) == 0;
}
inline void __syncwarp(unsigned mask = ~0u) {
  tg::emulator::sync_warp(mask);
}
inline unsigned __activemask() {
  return tg::emulator::active_lanes();
}

namespace tg::emulator {

template <class T>
struct Shuffle {
  T value;
  int source;
  T result;
};
// Returns the value of a lane. If the lane does not exist, returns bytes that the kernel must not use.
template <class T>
T shuffle(unsigned mask, T value, int source) {
  Shuffle<T> mine{value, source, {}};
  meet_warp(mask, &mine, [](void* const(&all)[32]) {
    for (void* lane : all)
      if (lane) {
        auto& to = *static_cast<Shuffle<T>*>(lane);
        if (const void* from = all[to.source & 31])
          to.result = static_cast<const Shuffle<T>*>(from)->value;
        else
          std::memset(static_cast<void*>(&to.result), 0xff, sizeof to.result);
      }
  });
  return mine.result;
}

// A reduction over the lanes of a mask.
template <class T, class Op>
T reduce(unsigned mask, T value, Op) {
  meet_warp(mask, &value, [](void* const(&all)[32]) {
    const T* first = nullptr;
    T sum{};
    for (void* lane : all)
      if (lane) {
        const T& v = *static_cast<const T*>(lane);
        sum = first ? Op()(sum, v) : v;
        first = &v;
      }
    for (void* lane : all)
      if (lane) *static_cast<T*>(lane) = sum;
  });
  return value;
}

}  // namespace tg::emulator

template <class T>
T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
  const int lane = static_cast<int>(tg::emulator::lane());
  return tg::emulator::shuffle(mask, v, (lane & -width) | (source & (width - 1)));
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32) {
  const int lane = static_cast<int>(tg::emulator::lane()), from = lane - static_cast<int>(by);
  return tg::emulator::shuffle(mask, v, from < (lane & -width) ? lane : from);
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32) {
  const int lane = static_cast<int>(tg::emulator::lane()), from = lane + static_cast<int>(by);
  return tg::emulator::shuffle(mask, v, from > (lane | (width - 1)) ? lane : from);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int by, int width = 32) {
  const int lane = static_cast<int>(tg::emulator::lane()), from = lane ^ by;
  return tg::emulator::shuffle(mask, v, from > (lane | (width - 1)) ? lane : from);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return tg::emulator::reduce(mask, predicate ? 1u << tg::emulator::lane() : 0u, std::bit_or<unsigned>());
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, !predicate) == 0;
}
template <class T>
T __reduce_add_sync(unsigned mask, T v) {
  return tg::emulator::reduce(mask, v, std::plus<T>());
}
template <class T>
T __reduce_min_sync(unsigned mask, T v) {
  return tg::emulator::reduce(mask, v, [](T a, T b) { return b < a ? b : a; });
}
template <class T>
T __reduce_max_sync(unsigned mask, T v) {
  return tg::emulator::reduce(mask, v, [](T a, T b) { return a < b ? b : a; });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned v) {
  return tg::emulator::reduce(mask, v, std::bit_or<unsigned>());
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned v) {
  return tg::emulator::reduce(mask, v, std::bit_and<unsigned>());
}

// ---- memory ----

// Atomic operations may access the same address concurrently. So their accesses are not checked.
#define TG_ATOMIC    \
  template <class T> \
  __attribute__((no_sanitize("thread"))) T
TG_ATOMIC atomicAdd(T* p, std::type_identity_t<T> v) {
  const T old = *p;
  *p = static_cast<T>(old + v);
  return old;
}
TG_ATOMIC atomicExch(T* p, std::type_identity_t<T> v) {
  const T old = *p;
  *p = v;
  return old;
}
TG_ATOMIC atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> v) {
  const T old = *p;
  if (old == expected) *p = v;
  return old;
}
TG_ATOMIC atomicMax(T* p, std::type_identity_t<T> v) {
  const T old = *p;
  if (old < v) *p = v;
  return old;
}
TG_ATOMIC atomicMin(T* p, std::type_identity_t<T> v) {
  const T old = *p;
  if (v < old) *p = v;
  return old;
}
TG_ATOMIC atomicOr(T* p, std::type_identity_t<T> v) {
  const T old = *p;
  *p = old | v;
  return old;
}
#undef TG_ATOMIC
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) {}
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, std::type_identity_t<T> v) {
  *p = v;
}
inline std::size_t __cvta_generic_to_shared(const void* p) {
  return tg::emulator::shared_address(p);
}

// ---- numbers ----

#define TG_MIN_MAX(type)            \
  inline type min(type a, type b) { \
    return b < a ? b : a;           \
  }                                 \
  inline type max(type a, type b) { \
    return a < b ? b : a;           \
  }
TG_MIN_MAX(int)
TG_MIN_MAX(unsigned)
TG_MIN_MAX(long long)
TG_MIN_MAX(unsigned long long)
TG_MIN_MAX(long)
TG_MIN_MAX(unsigned long)
#undef TG_MIN_MAX
inline float min(float a, float b) {
  return fminf(a, b);
}
inline float max(float a, float b) {
  return fmaxf(a, b);
}
inline double min(double a, double b) {
  return fmin(a, b);
}
inline double max(double a, double b) {
  return fmax(a, b);
}

inline float rsqrtf(float x) {
  return 1 / sqrtf(x);
}
inline float rsqrt(float x) {
  return 1 / sqrtf(x);
}
inline double rsqrt(double x) {
  return 1 / sqrt(x);
}
inline float __expf(float x) {
  return expf(x);
}
inline float __logf(float x) {
  return logf(x);
}
inline float __sinf(float x) {
  return sinf(x);
}
inline float __cosf(float x) {
  return cosf(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __frcp_rn(float x) {
  return 1 / x;
}
inline float __fsqrt_rn(float x) {
  return sqrtf(x);
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return fmaf(a, b, c);
}
inline double __dmul_rn(double a, double b) {
  return a * b;
}
inline double __dadd_rn(double a, double b) {
  return a + b;
}
inline double normcdf(double x) {
  return 0.5 * erfc(-x * 0.70710678118654752);
}

inline int __popc(unsigned x) {
  return std::popcount(x);
}
inline int __popcll(unsigned long long x) {
  return std::popcount(x);
}
inline int __clz(int x) {
  return std::countl_zero(static_cast<unsigned>(x));
}
inline int __clzll(long long x) {
  return std::countl_zero(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int i = 0; i < 32; ++i) y |= (x >> i & 1) << (31 - i);
  return y;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using u128 = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<u128>(a) * b >> 64);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline double __longlong_as_double(long long x) {
  return std::bit_cast<double>(x);
}
inline long long __double_as_longlong(double x) {
  return std::bit_cast<long long>(x);
}

// ---- launches ----

// Copies the arguments at the launch, like CUDA.
template <class... P>
cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void** args, std::size_t shared = 0,
                             cudaStream_t stream = nullptr) {
  auto copied = [&]<std::size_t... I>(std::index_sequence<I...>) {
    return std::tuple<P...>(*static_cast<const P*>(args[I])...);
  }
  (std::index_sequence_for<P...>());
  return tg::emulator::launch(stream, reinterpret_cast<const void*>(kernel), grid, block, shared,
                              [=] { std::apply(kernel, copied); });
}
template <class... P, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* c, void (*kernel)(P...), Args&&... args) {
  bool early = false;
  unsigned cluster = 1;
  for (unsigned n = 0; n < c->numAttrs; ++n)
    if (const auto& [id, value] = c->attrs[n]; id == cudaLaunchAttributeClusterDimension)
      cluster = value.clusterDim.x;
    else
      early |= value.programmaticStreamSerializationAllowed != 0;
  const auto thread = [=, copied = std::tuple<P...>(args...)] {
    if (early) tg::emulator::begin_early();
    std::apply(kernel, copied);
    if (early) tg::emulator::end_early();
  };
  return tg::emulator::launch(c->stream, reinterpret_cast<const void*>(kernel), c->grid, c->block,
                              c->dynamicSmemBytes, thread, cluster);
}
template <class F>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, F*, int, std::size_t) {
  *blocks = 2;
  return cudaSuccess;
}
template <class F>
cudaError_t cudaFuncSetAttribute(F*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
