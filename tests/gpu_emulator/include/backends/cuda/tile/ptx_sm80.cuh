// Implements the instructions in backends/cuda/tile/ptx_sm80.cuh in plain C++, as PTX defines them. This file
// replaces the original because the emulator's include folder has priority.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

#include "tests/gpu_emulator/named_barrier.h"

namespace tg::cuda::ptx {

using u32 = std::uint32_t;

inline u32 shared_address(const void* p) {
  return emulator::shared_address(p);
}

inline void cp_async_16(u32 to, const void* from, int bytes) {
  emulator::copy_later(emulator::shared_pointer(to), from, 16, bytes);
}
inline void cp_async_8(u32 to, const void* from, int bytes) {
  emulator::copy_later(emulator::shared_pointer(to), from, 8, bytes);
}
inline void cp_async_16(u32 to, const void* from, int bytes, std::uint64_t) {
  cp_async_16(to, from, bytes);
}
inline void cp_async_16_of_line(u32 to, const void* from, int bytes) {
  cp_async_16(to, from, bytes);
}
inline void cp_async_commit() {
  emulator::commit_copies();
}
template <int Pending>
void cp_async_wait() {
  emulator::wait_copies(Pending);
}

// The emulator has no cache.
inline std::uint64_t evict_first() {
  return 0;
}
inline std::uint64_t evict_last() {
  return 0;
}
inline void st_global_v4(float* to, float4 x, std::uint64_t) {
  *reinterpret_cast<float4*>(to) = x;
}
inline void prefetch_line(const void*) {}
inline void prefetch_to_second_level(const void*) {}

inline void bar_sync(int barrier, int threads) {
  emulator::bar_sync(barrier, threads);
}
inline void barrier_sync(int barrier, int threads) {
  emulator::bar_sync(barrier, threads);
}
inline void bar_arrive(int barrier, int threads) {
  emulator::bar_arrive(barrier, threads);
}

// ---- matrices whose elements are distributed over the lanes of a warp ----

struct MatrixLoad {
  const unsigned char* row;
  u32 (&x)[4];
};
// Returns the address of the 16-bit element (r, c) of part n.
inline u32 element(void* const (&all)[32], int n, int r, int c) {
  std::uint16_t e;
  std::memcpy(&e, static_cast<const MatrixLoad*>(all[8 * n + r])->row + 2 * c, 2);
  return e;
}
template <bool transposed>
void load_matrices(u32 (&x)[4], u32 address) {
  MatrixLoad mine{emulator::shared_pointer(address), x};
  emulator::meet_warp(~0u, &mine, [](void* const(&all)[32]) {
    for (int lane = 0; lane < 32; ++lane)
      for (int n = 0; n < 4; ++n) {
        const int g = lane / 4, t = lane % 4 * 2;
        static_cast<MatrixLoad*>(all[lane])->x[n] =
            transposed ? element(all, n, t, g) | element(all, n, t + 1, g) << 16
                       : element(all, n, g, t) | element(all, n, g, t + 1) << 16;
      }
  });
}
inline void ldmatrix(u32 (&x)[4], u32 address) {
  load_matrices<false>(x, address);
}
inline void ldmatrix_trans(u32 (&x)[4], u32 address) {
  load_matrices<true>(x, address);
}
// Element (r, c) is in lane 4·r + c / 2. Bit 0 of c selects half of the lane's word.
inline u32 transpose_8x8(u32 x) {
  struct Words {
    u32 from, to;
  } mine{x, 0};
  emulator::meet_warp(~0u, &mine, [](void* const(&all)[32]) {
    const auto element = [&](int r, int c) {
      return static_cast<const Words*>(all[4 * r + c / 2])->from >> c % 2 * 16 & 0xffffu;
    };
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4 * 2;
      static_cast<Words*>(all[lane])->to = element(t, g) | element(t + 1, g) << 16;
    }
  });
  return mine.to;
}
inline void st_shared(u32 address, u32 x) {
  std::memcpy(emulator::shared_pointer(address), &x, 4);
}
inline void st_shared_v4(u32 address, uint4 v) {
  *reinterpret_cast<uint4*>(emulator::shared_pointer(address)) = v;
}
inline uint4 ld_shared_v4(u32 address) {
  return *reinterpret_cast<const uint4*>(emulator::shared_pointer(address));
}

inline void red_add_v4(float* to, const float (&x)[4]) {
  for (int e = 0; e < 4; ++e) to[e] += x[e];
}

struct Product {
  float (&c)[4];
  const u32 (&a)[4];
  u32 b[2];
};
inline float number(u32 bits, __nv_bfloat16) {
  return __uint_as_float(bits << 16);
}
inline float number(u32 bits, __half) {
  return static_cast<float>(std::bit_cast<_Float16>(static_cast<std::uint16_t>(bits)));
}
// c [16, 8] += a [16, K]·b [K, 8]. Each word of a and b contains two neighbors along K. In tensor cores, the
// order and rounding of sums are undocumented. As on Hopper, they are the same here as in wgmma
// (../../../../multiply.cpp).
template <class S, int K>
void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  Product mine{c, a, {b0, b1}};
  emulator::meet_warp(~0u, &mine, [](void* const(&all)[32]) {
    constexpr int each = K / 8;  // two numbers in a word
    float left[16][K], right[K][8];
    for (int lane = 0; lane < 32; ++lane) {
      const auto& p = *static_cast<const Product*>(all[lane]);
      const int g = lane / 4, t = lane % 4 * each;
      for (int e = 0; e < each; ++e)
        for (int word = 0; word < 4; ++word) {
          left[g + word % 2 * 8][t + e + word / 2 * 4 * each] = number(p.a[word] >> 16 * e, S());
          if (word < 2) right[t + e + word * 4 * each][g] = number(p.b[word] >> 16 * e, S());
        }
    }
    for (int lane = 0; lane < 32; ++lane)
      for (int e = 0; e < 4; ++e) {
        float& to = static_cast<Product*>(all[lane])->c[e];
        for (int k = 0; k < K; ++k) to += left[lane / 4 + e / 2 * 8][k] * right[k][lane % 4 * 2 + e % 2];
      }
  });
}
inline void mma_m16n8k16_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  multiply<__nv_bfloat16, 16>(c, a, b0, b1);
}
inline void mma_m16n8k16_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  multiply<__half, 16>(c, a, b0, b1);
}

// ---- two numbers in a word ----

template <class S>
u32 two(float low, float high) {
  return std::bit_cast<std::uint16_t>(S(low)) | static_cast<u32>(std::bit_cast<std::uint16_t>(S(high))) << 16;
}
inline float max_nan(float a, float b) {
  return a != a || b != b ? NAN : fmaxf(a, b);
}
template <class S>
u32 larger(u32 a, u32 b, float (*larger_of)(float, float)) {
  const auto half = [](u32 x) { return static_cast<float>(std::bit_cast<S>(static_cast<std::uint16_t>(x))); };
  return two<S>(larger_of(half(a), half(b)), larger_of(half(a >> 16), half(b >> 16)));
}
inline u32 max_bf16x2(u32 a, u32 b) {
  return larger<__nv_bfloat16>(a, b, fmaxf);
}
inline u32 max_f16x2(u32 a, u32 b) {
  return larger<__half>(a, b, fmaxf);
}
inline u32 max_nan_bf16x2(u32 a, u32 b) {
  return larger<__nv_bfloat16>(a, b, max_nan);
}
inline u32 max_nan_f16x2(u32 a, u32 b) {
  return larger<__half>(a, b, max_nan);
}

// ---- conversions ----

inline u32 cvt_bf16x2(float low, float high) {
  return two<__nv_bfloat16>(low, high);
}
inline u32 cvt_f16x2(float low, float high) {
  return two<__half>(low, high);
}
inline float2 unpack_f16x2(u32 x) {
  return {number(x, __half()), number(x >> 16, __half())};
}

inline float lg2(float x) {
  return log2f(x < 0x1p-126f ? 0.f : x);
}
inline float rcp(float x) {
  return 1 / x;
}
inline float ex2(float x) {
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.f : y;
}

}  // namespace tg::cuda::ptx
