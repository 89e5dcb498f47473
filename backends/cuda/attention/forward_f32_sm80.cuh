// The forward of f32 on tensor cores, its operands as f16 terms (SplitOperands): forward_sm80.cu for numbers
// of one term or two. P is at most 2⁸ and needs no power of two of its own.
#pragma once

#include "backends/cuda/attention/dropout.cuh"
#include "backends/cuda/attention/epilogue.cuh"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/key_source.cuh"
#include "backends/cuda/attention/powers.cuh"
#include "backends/cuda/attention/schedule.cuh"
#include "backends/cuda/attention/softmax.cuh"
#include "backends/cuda/attention/visible_keys.cuh"
#include "backends/cuda/tile/pipeline_sm80.cuh"
#include "backends/cuda/tile/terms.cuh"

namespace tg::cuda::attention::forward_f32 {

using namespace tile;

// Four warps. One with 32 queries reads shared memory half as often as one with 16, where registers hold O.
template <int terms, int D, Options options>
struct Shape {
  static constexpr int rows = D <= 64 ? 32 : 16;  // queries of a warp
  static constexpr int threads = 128, queries = threads / 32 * rows,
                       keys = D == 32           ? 32
                              : D == 128        ? (terms == 1 ? 32 : 16)
                              : options == none ? (terms == 1 ? 64 : 32)
                                                : (terms == 1 ? 32 : 16);  // of a tile
  static constexpr int tile = keys * D * terms * 2;                        // bytes
  static constexpr int q = 0, k = q + queries * D * terms * 2, v = k + 2 * tile, seen = v + 2 * tile,
                       bytes = seen + int(sizeof(SeenKeys<queries>));
};

// A block for some queries of a head.
template <int terms, int D, Options options>
__global__ void __launch_bounds__(Shape<terms, D, options>::threads, 2)
    forward(const __grid_constant__ AttentionCall x, const Powers* all_powers) {
  TG_DYNAMIC_SHARED(memory, 1024);
  using At = Shape<terms, D, options>;
  using Numbers = Terms<__half, terms>;
  constexpr int rows = At::rows, threads = At::threads, queries = At::queries, keys = At::keys;
  auto& seen = *reinterpret_cast<SeenKeys<queries>*>(memory + At::seen);
  const u32 base = shared_address(memory);
  const SharedTile<terms * D> tile_q{base + At::q};
  const auto tile_k = [&](int n) { return SharedTile<terms * D>{base + At::k + n % 2 * At::tile}; };
  const auto tile_v = [&](int n) { return SharedTile<terms * D>{base + At::v + n % 2 * At::tile}; };
  const auto [bh, b, h, block_i0] = query_place(x, blockIdx.x, queries);
  const int key_head = h / (x.H / x.Hk), row = threadIdx.x / 32 * rows, i0 = block_i0 + row;

  load_rows<queries, threads>(tile_q, x.q.at<__half>(b, h), x.q.row, block_i0, 0, x.L, terms * D);
  commit();
  seen.set(x, b, block_i0);
  __syncthreads();
  KeyRange some, every;
  seen.unite(min(queries, x.L - block_i0), some, every);

  Accumulator<rows, D> o;
  o.fill(0);
  OnlineSoftmax<rows> softmax(x.sink ? static_cast<const float*>(x.sink)[h] : -INFINITY);
  const Powers powers = all_powers[b * x.Hk + key_head];
  Score<float> score(x, b, h);
  score.factor *= power_of_two(-powers.q - powers.k);
  Dropout<float> dropout(x);
  const float kept = dropout.kept;
  dropout.kept = 1;  // what is kept grows at the end
  const float factor = options == any ? 1 : score.factor;
  const auto source = keys_of_head<__half>(x, b, key_head, some, terms * D, terms * D);
  const Tiles tiles(some, keys);
  Pipeline pipe(2, tiles.from, tiles.to, [&](int n) {
    source.template load<keys, threads>(tile_k(n), tile_v(n), n * keys);
    commit();
  });
  for (int n = tiles.from; n < tiles.to; ++n) {
    pipe.wait(n);
    const int j0 = n * keys;
    Accumulator<rows, keys> s;
    s.fill(0);
    mma_ABt<Numbers>(s, tile_q, row, tile_k(n));  // S = Q·Kᵀ
    if constexpr (options == any) score.apply(s, x, i0, j0);
    if (!covers(every, j0, keys)) mask(s, seen, row, j0);
    softmax.step(s, o, factor);  // c, π, G rescaled, P = exp(A − c)
    if (drops<options>(x)) drop(s, dropout, bh, i0, j0);
    mma_AB<Numbers>(o, s, tile_v(n));  // G += P·V
  }
  wait();
  softmax.finish(o, static_cast<float*>(x.lse) + i64(bh) * x.L, i0, x.L);
  scale(o, kept, -powers.v);
  store(o, x.o.at<float>(b, h), x.o.row, i0, x.L, x.dv);
}

template <int terms>
void launch(const Stream& s, const AttentionCall& x, const Powers* powers) {
  with_options(x, [&](auto options) {
    with_split_size(x, [&](auto size) {
      using At = Shape<terms, size, options>;
      const i64 blocks = i64(x.B) * x.H * ((x.L + At::queries - 1) / At::queries);
      launch_kernel(s, {blocks_for(blocks, 1), At::threads, At::bytes}, forward<terms, size, options>, x,
                    powers);
    });
  });
}

}  // namespace tg::cuda::attention::forward_f32
