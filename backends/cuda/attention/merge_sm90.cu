// Results of queries over parts of their keys become one: ξ = log(Σₙ exp ξₙ), O = Σₙ exp(ξₙ − ξ)·Oₙ. The
// order of the sums depends on the number of parts alone: the same bits every time.
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/softmax.cuh"
#include "backends/cuda/tile/ptx_sm90.cuh"
#include "backends/cuda/tile/shared_sm80.cuh"

namespace tg::cuda::attention {

namespace {

// Of a query: ξ, and four columns of O.
struct Result {
  float lse;
  float4 o;
};
__device__ __forceinline__ void add(float4& to, float by, const float4& x) {
  to.x += by * x.x, to.y += by * x.y, to.z += by * x.z, to.w += by * x.w;
}
__device__ __forceinline__ Result together(const Result& r, const Result& s) {
  const Merge m = merge(r.lse, s.lse);
  Result to{m.lse, {0, 0, 0, 0}};
  add(to.o, m.a, r.o), add(to.o, m.b, s.o);
  return to;
}
template <class F>
__device__ __forceinline__ float over_warp(float x, F&& f) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) x = f(x, __shfl_xor_sync(~0u, x, by));
  return x;
}

// Parts n = 0 … `parts` − 1, at most 32 and `between` apart, of a query whose first are at `lse` and `o`;
// each lane has four columns, if `inside`.
__device__ __forceinline__ Result merge_some(int parts, const float* lse, i64 lse_between, const float* o,
                                             i64 o_between, bool inside) {
  const int lane = tile::lane_id();
  const float own = lane < parts ? lse[lane * lse_between] : -INFINITY,
              top = over_warp(own, [](float a, float b) { return fmaxf(a, b); });
  if (top == -INFINITY) return {top, {0, 0, 0, 0}};
  const float part = expf(own - top), all = over_warp(part, [](float a, float b) { return a + b; }),
              weight = part / all;
  Result to{top + logf(all), {0, 0, 0, 0}};
#pragma unroll 8
  for (int n = 0; n < parts; ++n) {
    const float by = __shfl_sync(~0u, weight, n);
    if (inside) add(to.o, by, *reinterpret_cast<const float4*>(o + n * o_between));
  }
  return to;
}

// A query's columns in pieces of 128, for each of which there are `Warps` warps, which share the parts.
constexpr int threads = 256, piece = 128;
template <class S, int Warps>
__global__ void __launch_bounds__(threads)
    merge_parts(const __grid_constant__ AttentionCall x, int parts, const float* o, const float* lse) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  __shared__ Result of_warp[threads];
  ptx::wait_for_kernel_before();
  const int lane = tile::lane_id(), warp = threadIdx.x / 32, nth = warp % Warps,
            pieces = (x.dv + piece - 1) / piece;
  const i64 rows = x.B * x.H * x.L, at = i64{blockIdx.x} * (threads / 32 / Warps) + warp / Warps,
            row = at / pieces;
  const int column = static_cast<int>(at % pieces) * piece + lane * 4;
  const bool inside = row < rows && column < x.dv;
  Result r{-INFINITY, {0, 0, 0, 0}};
  if (row < rows)
#pragma unroll 1
    for (int n = nth; n < parts; n += 32 * Warps) {
      const int some = min((parts - n + Warps - 1) / Warps, 32);
      const i64 first = n * rows + row;
      r = together(r, merge_some(some, lse + first, Warps * rows, o + first * x.dv + column,
                                 Warps * rows * x.dv, inside));
    }
  if constexpr (Warps > 1) {
    of_warp[threadIdx.x] = r;
    __syncthreads();
    if (nth > 0) return;
#pragma unroll 1
    for (int n = 1; n < Warps; ++n) r = together(r, of_warp[threadIdx.x + 32 * n]);
  }
  if (!inside) return;
  const i64 head = row / x.L, i = row % x.L;
  *reinterpret_cast<uint2*>(x.o.at<S>(head / x.H, head % x.H) + i * x.o.row + column) = {
      tile::pack(r.o.x, r.o.y, S()), tile::pack(r.o.z, r.o.w, S())};
  if (column == 0) static_cast<float*>(x.lse)[row] = r.lse;
#endif
}

}  // namespace

void launch_merge(const Stream& s, const AttentionCall& x, const Workspace& work) {
  with_16_bits(x.type, [&](auto zero) {
    with_constant<1, 8>(work.parts <= 8 ? 1 : 8, [&](auto warps) {
      const i64 pieces = (x.dv + piece - 1) / piece * i64{warps};
      LaunchShape shape{blocks_for(x.B * x.H * x.L * pieces, threads / 32), threads};
      shape.early = true;
      launch_kernel(s, shape, merge_parts<decltype(zero), warps>, x, work.parts, work.o, work.lse);
    });
  });
}

}  // namespace tg::cuda::attention
