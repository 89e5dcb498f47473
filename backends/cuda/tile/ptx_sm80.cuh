// PTX instructions for which CUDA C++ has no function. Each function here is one instruction. Shared memory
// addresses are from shared_address(). Kernels contain no other inline assembly, because tests/gpu_emulator
// replaces this file by plain C++.
#pragma once

#include <cstdint>

namespace tg::cuda::ptx {

using u32 = std::uint32_t;

__device__ __forceinline__ u32 shared_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}

// ---- asynchronous copies to shared memory ----

// Copies 16 bytes, bypassing the L1 cache. The first `bytes` (16 or 0) are from `from`, the others are zero.
__device__ __forceinline__ void cp_async_16(u32 to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
// Like cp_async_16, but the L2 cache fetches the whole 128-byte line. This is for threads that soon copy the
// rest of the line.
__device__ __forceinline__ void cp_async_16_of_line(u32 to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void cp_async_8(u32 to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
// Like cp_async_16, with an L2 cache policy. If ptxas 13.0 adds a uniform register to `to`, it generates an
// instruction that is invalid on every GPU. When you copy to a stage, keep the whole address in a per-lane
// variable.
__device__ __forceinline__ void cp_async_16(u32 to, const void* from, int bytes, std::uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
               "r"(bytes), "l"(policy));
}
// Commits the thread's copies since the last call as a group.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;");
}
// Waits until all except the last `Pending` of the thread's groups are complete.
template <int Pending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending));
}

// ---- L2 cache ----

// Cache policies for data that is read once, and for data that is soon read again.
__device__ __forceinline__ std::uint64_t evict_first() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ std::uint64_t evict_last() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void st_global_v4(float* to, float4 x, std::uint64_t policy) {
  asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1,%2,%3,%4}, %5;" ::"l"(to), "f"(x.x), "f"(x.y),
               "f"(x.z), "f"(x.w), "l"(policy)
               : "memory");
}
// Prefetches a line into the L1 cache.
__device__ __forceinline__ void prefetch_line(const void* p) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
}

// Prefetches the data at p into the L2 cache.
__device__ __forceinline__ void prefetch_to_second_level(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// ---- registers of a warp ----

// Transposes an 8 × 8 part of 16-bit elements in a warp's registers. Lane 4·g + t has elements (g, 2t) and
// (g, 2t + 1).
__device__ __forceinline__ u32 transpose_8x8(u32 x) {
  u32 to;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(x));
  return to;
}

// ---- shared memory ----

// Loads four 8 × 8 parts of 16-bit elements. Lane 8·n + r provides the address of row r of part n (16 bytes).
// Lane 4·g + t receives elements (g, 2t) and (g, 2t + 1) of each part, or (2t, g) and (2t + 1, g) for
// `trans`.
__device__ __forceinline__ void ldmatrix(u32 (&x)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address));
}
__device__ __forceinline__ void ldmatrix_trans(u32 (&x)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address));
}
__device__ __forceinline__ void st_shared(u32 address, u32 x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
__device__ __forceinline__ void st_shared_v4(u32 address, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ uint4 ld_shared_v4(u32 address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// ---- named barriers 1 … 15 for `threads` threads; some of them may only arrive ----

// All waiting threads must wait at the same instruction of the kernel.
__device__ __forceinline__ void bar_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Threads may wait at different instructions.
__device__ __forceinline__ void barrier_sync(int barrier, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void bar_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- sums in global memory, in any order ----

// to[0 … 3] += x. `to` is aligned to 16 bytes.
__device__ __forceinline__ void red_add_v4(float* to, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x[0]), "f"(x[1]),
               "f"(x[2]), "f"(x[3])
               : "memory");
#else
  for (int e = 0; e < 4; ++e)
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to + e), "f"(x[e]) : "memory");
#endif
}

// ---- matrix products of a warp: c [16, 8] += a [16, k]·b [k, 8], with f32 sums ----

// In all of these functions, lane 4·g + t has elements (g, 2t), (g, 2t + 1), (g + 8, 2t) and (g + 8, 2t + 1)
// of c. For k = 16, the lane's four words of a are in rows g, g + 8, g, g + 8 and columns 2t, 2t + 1. The
// last two words are 8 columns further. Its two words of b are in rows 2t, 2t + 1 and column g. b1 is 8 rows
// further.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_m16n8k16_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- two 16-bit elements in a word ----

// The elementwise maximum. If one operand is NaN, the result is the other operand.
__device__ __forceinline__ u32 max_bf16x2(u32 a, u32 b) {
  u32 r;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ u32 max_f16x2(u32 a, u32 b) {
  u32 r;
  asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// The elementwise maximum. If either operand is NaN, the result is NaN.
__device__ __forceinline__ u32 max_nan_bf16x2(u32 a, u32 b) {
  u32 r;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ u32 max_nan_f16x2(u32 a, u32 b) {
  u32 r;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
__device__ __forceinline__ float max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// ---- conversions ----

// Two elements rounded to nearest even. `low` is in the lower half.
__device__ __forceinline__ u32 cvt_bf16x2(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ u32 cvt_f16x2(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ float2 unpack_f16x2(u32 x) {
  float2 r;
  asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(r.x), "=f"(r.y)
      : "r"(x));
  return r;
}

// log₂ x. For x in ½ … 2, the absolute error is at most 2⁻²². For other x, the relative error is at most
// 2⁻²². Denormals are treated as zero.
__device__ __forceinline__ float lg2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x, accurate to 1 ulp. Denormals are treated as zero.
__device__ __forceinline__ float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 2ˣ, accurate to 22 bits. Denormals are treated as zero.
__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace tg::cuda::ptx
