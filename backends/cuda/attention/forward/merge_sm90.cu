// Merges the results over the parts of the keys: c = maxₙ cₙ, π = Σₙ exp(cₙ − c)·πₙ, ξ = c + log π, O = Σₙ
// exp(cₙ − c)·πₙ·Oₙ ⊘ π. The summation order depends only on the number of parts, so results are
// deterministic.
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/stages/softmax.cuh"
#include "backends/cuda/kernels/elements.cuh"
#include "backends/cuda/tile/ptx_sm90.cuh"
#include "backends/cuda/tile/shared_sm80.cuh"

namespace tg::cuda::attention {

namespace {

__device__ __forceinline__ float over_warp(float x, auto&& f) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) x = f(x, __shfl_xor_sync(~0u, x, by));
  return x;
}
// exp(c − top)·π of a part.
[[maybe_unused]] __device__ __forceinline__ float weight_of(float2 part, float top, Largest c) {
  return tile::exp2_fast(c.difference(part.x, top)) * part.y;
}
// c and π over all parts, computed by a warp. Consecutive parts are `between` elements apart.
[[maybe_unused]] __device__ __forceinline__ float2 all_of(const float2* lse, i64 between, int parts,
                                                          Largest c) {
  float top = -INFINITY, sum = 0;
  for (int n = tile::lane_id(); n < parts; n += 32) top = fmaxf(top, lse[n * between].x);
  top = over_warp(top, [](float a, float b) { return fmaxf(a, b); });
  if (top == -INFINITY) return {top, 0};
  for (int n = tile::lane_id(); n < parts; n += 32) sum += weight_of(lse[n * between], top, c);
  return {top, over_warp(sum, [](float a, float b) { return a + b; })};
}
[[maybe_unused]] __device__ __forceinline__ void add(float4& to, float by, const float4& x) {
  to.x += by * x.x, to.y += by * x.y, to.z += by * x.z, to.w += by * x.w;
}

// One row of O is processed in pieces of 128 columns, four per lane. `Warps` warps share the parts of each
// piece.
constexpr int threads = 256, piece = 128;
template <class S, int Warps>
__global__ void __launch_bounds__(threads)
    merge_parts(const __grid_constant__ AttentionCall x, int parts, const float* o, const float2* lse,
                Largest c, float2 unit) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  __shared__ float4 of_warp[threads];
  ptx::wait_for_kernel_before();
  const int warp = threadIdx.x / 32, nth = warp % Warps, pieces = (x.dv + piece - 1) / piece;
  const i64 rows = x.B * x.H * x.L, at = i64{blockIdx.x} * (threads / 32 / Warps) + warp / Warps,
            row = at / pieces;
  const int column = static_cast<int>(at % pieces) * piece + tile::lane_id() * 4;
  float2 all{-INFINITY, 0};
  float4 sum{0, 0, 0, 0};
  if (row < rows) all = all_of(lse + row, rows, parts, c);
  const float inverse = all.y > 0 ? tile::reciprocal(all.y) : all.y;
  if (all.x > -INFINITY && column < x.dv)
#pragma unroll 4
    for (int n = nth; n < parts; n += Warps) {
      const i64 from = n * rows + row;
      add(sum, weight_of(lse[from], all.x, c) * inverse,
          *reinterpret_cast<const float4*>(o + from * x.dv + column));
    }
  if constexpr (Warps > 1) {
    of_warp[threadIdx.x] = sum;
    __syncthreads();
    if (nth > 0) return;
#pragma unroll
    for (int n = 1; n < Warps; ++n) add(sum, 1, of_warp[threadIdx.x + 32 * n]);
  }
  if (row >= rows || column >= x.dv) return;
  const i64 head = row / x.L;
  *reinterpret_cast<uint2*>(x.o.at<S>(head / x.H, head % x.H) + row % x.L * x.o.row + column) = {
      tile::pack(sum.x, sum.y, S()), tile::pack(sum.z, sum.w, S())};
  if (column == 0)
    lse_of_call(x, 0).put(
        row, all.y == 0 ? float2{-INFINITY, 0} : split_lse(c.exponent(all.x), logf(all.y), unit));
#endif
}

}  // namespace

void launch_merge(const Stream& s, const AttentionCall& x, const Workspace& work, bool by_scores) {
  const float factor = units_of(x).exponent;
  const Largest c = by_scores ? Largest{factor, -1} : Largest{parts_of(factor).mantissa, most_near_exponent};
  with_16_bits(x.type, [&](auto zero) {
    with_constant<1, 8>(work.parts <= 8 ? 1 : 8, [&](auto warps) {
      const i64 pieces = (x.dv + piece - 1) / piece * i64{warps};
      launch_early(s, {blocks_for(x.B * x.H * x.L * pieces, threads / 32), threads},
                   merge_parts<decltype(zero), warps>, x, work.parts, work.o, work.lse, c,
                   unit_of_exponents(x));
    });
  });
}

}  // namespace tg::cuda::attention
