// Prepares the backward (Stratos, Lemma 2.1). Computes u = (O ⊛ z_O).sum − z_ξ of each row, converts ξ and u
// to the format of the tensor-core kernels, and finds the keys that query tiles see.
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/stages/far_rows.cuh"
#include "backends/cuda/attention/stages/row_dot.cuh"
#include "backends/cuda/attention/stages/score.cuh"
#include "backends/cuda/attention/stages/visible_keys.cuh"

namespace tg::cuda::attention {

namespace {

// Computes u = (O ⊛ z_O).sum − z_ξ, scaled for tensor cores if operands are split. Several lanes share a row
// [dv], with V elements per load. Blocks of head 0 also store the visible keys of their tile. All blocks
// clear the z_Q accumulators.
template <class S, int V>
__global__ void __launch_bounds__(256)
    row_stats(const __grid_constant__ AttentionCall x, const Workspace work, const Powers* powers) {
  using C = compute_t<S>;
  const int tiles = work.tiles(x), tile = blockIdx.x % tiles, h = blockIdx.x / tiles % x.H,
            b = blockIdx.x / tiles / x.H;
  const int i0 = tile * range_tile;
  for (int w = 0; work.z_q && w < work.workers; ++w) {
    float4* sums = reinterpret_cast<float4*>(
        work.z_q_part(x, i64(w * int(x.B) + b) * x.H + h, tile * (range_tile / 16), 0));
    for (int n = threadIdx.x; n < range_tile * x.d / 4; n += blockDim.x) sums[n] = float4{0, 0, 0, 0};
  }
  for_each_u<S, V, range_tile, 1, S>(x, work, b, h, i0, 1, [&](int, i64 row, bool inside, C u) {
    if constexpr (sizeof(S) <= 4) {
      if (!inside) return;
      const float lse = static_cast<const float*>(x.lse)[row];
      if (powers) {
        const Powers& p = powers[b * x.Hk + h / (x.H / x.Hk)];
        u *= static_cast<float>(1 - x.dropout) * power_of_two(p.z_o + p.v);
      }
      const bool is_empty = lse == -INFINITY || is_far(x.type, lse);
      work.stats[row] = {is_empty ? INFINITY : lse * static_cast<float>(log2_e), u};
    }
  });
  mark_far_rows<S, range_tile>(x, work, b, h, i0);  // ξ is in the L1 cache now
  if (h > 0) return;
  __shared__ VisibleKeys<range_tile> seen;
  const auto [some, every] = seen.set_and_unite(x, b, i0);
  if (threadIdx.x > 0) return;
  work.some[b * tiles + tile] = {some.from, some.to};
  work.every[b * tiles + tile] = {every.from, every.to};
}

}  // namespace

void launch_row_stats(const Stream& s, const AttentionCall& x, const Workspace& work, const Powers* powers) {
  const i64 blocks = i64(x.B) * x.H * work.tiles(x);
  if (blocks == 0) return;
  with_float(x.type, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    constexpr int V = 16 / sizeof(S);
    const LaunchShape shape{blocks_for(blocks, 1), 256};
    const bool pieces = x.dv % V == 0 && in_pieces(x.o, V) && in_pieces(x.z_o, V);
    pieces ? launch_kernel(s, shape, row_stats<S, V>, x, work, powers)
           : launch_kernel(s, shape, row_stats<S, 1>, x, work, powers);
  });
}

}  // namespace tg::cuda::attention
