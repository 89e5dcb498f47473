// The forward on tensor cores for heads beyond 128 (FlashAttention-2, 004 §D), like forward_sm80.cu, with
// fewer queries a warp; the widest values are split between two warps that make the same scores.
#include "backends/cuda/attention/dropout.cuh"
#include "backends/cuda/attention/epilogue.cuh"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/key_source.cuh"
#include "backends/cuda/attention/schedule.cuh"
#include "backends/cuda/attention/shapes.h"
#include "backends/cuda/attention/softmax.cuh"
#include "backends/cuda/attention/visible_keys.cuh"
#include "backends/cuda/tile/mma_sm80.cuh"
#include "backends/cuda/tile/pipeline_sm80.cuh"

namespace tg::cuda::attention {

namespace forward_wide {

using namespace tile;

template <class S, int D, int DV>
__global__ void __launch_bounds__(Shape<D, DV>::threads)
    forward(const __grid_constant__ AttentionCall x, int stages) {
  TG_DYNAMIC_SHARED(memory, 1024);
  using At = Shape<D, DV>;
  constexpr int keys = At::keys, queries = At::queries, threads = At::threads, rows = 16 * At::groups;
  auto& seen = *reinterpret_cast<SeenKeys<queries>*>(memory + At::seen);
  const u32 base = shared_address(memory);
  const SharedTile<D> tile_q{base + At::q};
  const auto stage = [&](int n) { return base + At::stages + (n & (stages - 1)) * At::stage; };
  const auto tile_k = [&](int n) { return SharedTile<D>{stage(n)}; };
  const auto tile_v = [&](int n) { return SharedTile<DV>{stage(n) + At::v}; };
  const auto [bh, b, h, block_i0] = query_place(x, blockIdx.x, queries);
  const int warp = threadIdx.x / 32, row = warp / At::splits * rows, i0 = block_i0 + row,
            column = warp % At::splits * At::columns;

  load_rows<queries, threads>(tile_q, x.q.at<S>(b, h), x.q.row, block_i0, 0, x.L, x.d);
  commit();
  seen.set(x, b, block_i0);
  __syncthreads();
  KeyRange some, every;
  seen.unite(min(queries, x.L - block_i0), some, every);

  Accumulator<rows, At::columns> o;
  o.fill(0);
  OnlineSoftmax<rows> softmax(x.sink ? widen(static_cast<const S*>(x.sink)[h]) : -INFINITY);
  const Score<S> score(x, b, h);
  const Dropout<float> dropout(x);
  const auto source = keys_of_head<S>(x, b, h / (x.H / x.Hk), some, x.d, x.dv);
  const Tiles tiles(some, keys);
  Pipeline pipe(stages, tiles.from, tiles.to, [&](int n) {
    source.template load<keys, threads>(tile_k(n), tile_v(n), n * keys);
    commit();
  });
  for (int n = tiles.from; n < tiles.to; ++n) {
    pipe.wait(n);
    const int j0 = n * keys;
    Accumulator<rows, keys> s;
    s.fill(0);
    mma_ABt<S>(s, tile_q, row, tile_k(n), 0);  // S = Q·Kᵀ
    score.apply(s, x, i0, j0);
    if (!covers(every, j0, keys)) mask(s, seen, row, j0);
    softmax.step(s, o, 1);  // c, π, G rescaled, P = exp(A − c)
    if (x.dropout > 0) drop(s, dropout, bh, i0, j0);
    mma_AB<S>(o, s, tile_v(n), column);  // G += P·V
    pipe.release(n);
  }
  wait();
  __syncthreads();

  // Warps with the same rows have the same ξ: one of them writes it.
  softmax.finish(o, static_cast<float*>(x.lse) + i64(bh) * x.L, i0, column == 0 ? x.L : 0);
  const SharedTile<At::columns> own{base + warp * (16 * At::columns * 2)};
  store<S, 0>(o, own, 0, x.o.at<S>(b, h) + column, x.o.row, i0, x.L, x.dv - column);
}

}  // namespace forward_wide

void launch_wide_forward(const Stream& s, const AttentionCall& x) {
  using namespace forward_wide;
  with_wide_sizes(x, [&](auto d, auto dv) {
    using At = Shape<d, dv>;
    const int stages = At::fitting_stages(s.gpu.shared_per_block);
    const i64 blocks = i64(x.B) * x.H * ((x.L + At::queries - 1) / At::queries);
    const LaunchShape shape{blocks_for(blocks, 1), At::threads, At::bytes(stages)};
    x.type == DType::bf16 ? launch_kernel(s, shape, forward<__nv_bfloat16, d, dv>, x, stages)
                          : launch_kernel(s, shape, forward<__half, d, dv>, x, stages);
  });
}

}  // namespace tg::cuda::attention
