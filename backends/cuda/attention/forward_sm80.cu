// The forward on tensor cores for heads to 128 (FlashAttention-2, 004 §D): 128 queries a block, 32 a warp,
// keys in tiles of 32 or 64 that arrive while the tile before is worked on.
//
//   c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum, G ← exp(c_old − c)·G + exp(A − c)·V
//   O = G ⊘ π, ξ = c + log π
#include "backends/cuda/attention/dropout.cuh"
#include "backends/cuda/attention/epilogue.cuh"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/key_source.cuh"
#include "backends/cuda/attention/schedule.cuh"
#include "backends/cuda/attention/softmax.cuh"
#include "backends/cuda/attention/visible_keys.cuh"
#include "backends/cuda/tile/mma_sm80.cuh"
#include "backends/cuda/tile/pipeline_sm80.cuh"

namespace tg::cuda::attention {

namespace narrow_forward {

using namespace tile;

constexpr int queries = 128, threads = 128;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool has_uniform_addresses = false;  // what is the same for a block takes registers of each thread
#else
constexpr bool has_uniform_addresses = true;
#endif

template <int D, Options options>
struct Shape {
  static constexpr int keys =
      D == 96 || (D >= 64 && options != none) ? 32 : 64;  // of a tile: as many as registers hold
  static constexpr int products = has_uniform_addresses || D < 128 ? D * keys / 256 : 4;  // unrolled
  static constexpr int tile = keys * D * 2, q = 0, k = q + queries * D * 2, v = k + 2 * tile,
                       seen = v + 2 * tile, bytes = seen + int(sizeof(SeenKeys<queries>));
};

// A block for 128 queries of a head.
template <class S, int D, Options options>
__global__ void __launch_bounds__(threads) forward(const __grid_constant__ AttentionCall x) {
  TG_DYNAMIC_SHARED(memory, 256);
  using At = Shape<D, options>;
  constexpr int keys = At::keys;
  auto& seen = *reinterpret_cast<SeenKeys<queries>*>(memory + At::seen);
  const u32 base = shared_address(memory);
  const SharedTile<D> tile_q{base + At::q};
  const auto tile_k = [&](int n) { return SharedTile<D>{base + At::k + n % 2 * At::tile}; };
  const auto tile_v = [&](int n) { return SharedTile<D>{base + At::v + n % 2 * At::tile}; };
  const auto [bh, b, h, block_i0] = query_place(x, blockIdx.x, queries);
  const int row = threadIdx.x / 32 * 32, i0 = block_i0 + row;  // the warp's queries

  load_rows<queries, threads>(tile_q, x.q.at<S>(b, h), x.q.row, block_i0, 0, x.L, x.d);
  commit();  // for blocks that fetch no keys
  seen.set(x, b, block_i0);
  __syncthreads();
  KeyRange some, every;
  seen.unite(min(queries, x.L - block_i0), some, every);

  Accumulator<32, D> o;
  o.fill(0);
  OnlineSoftmax<32> softmax(x.sink ? widen(static_cast<const S*>(x.sink)[h]) : -INFINITY);
  const Score<S> score(x, b, h);
  const Dropout<float> dropout(x);
  const float factor = options == any ? 1 : score.factor;
  const auto source = keys_of_head<S>(x, b, h / (x.H / x.Hk), some, x.d, x.dv);
  const Tiles tiles(some, keys);
  Pipeline pipe(2, tiles.from, tiles.to, [&](int n) {
    source.template load<keys, threads>(tile_k(n), tile_v(n), n * keys);
    commit();
  });
  for (int n = tiles.from; n < tiles.to; ++n) {
    pipe.wait(n);
    const int j0 = n * keys;
    Accumulator<32, keys> s;
    s.fill(0);
    mma_ABt_lean<S, At::products>(s, tile_q, row, tile_k(n));  // S = Q·Kᵀ
    if constexpr (options == any) score.apply(s, x, i0, j0);
    if (!covers(every, j0, keys)) mask(s, seen, row, j0);
    softmax.step(s, o, factor);  // c, π, G rescaled, P = exp(A − c)
    if (drops<options>(x)) drop(s, dropout, bh, i0, j0);
    mma_AB<S>(o, s, tile_v(n), 0);  // G += P·V
  }
  wait();
  __syncthreads();  // the queries' tile is written by rows of a warp, which other warps' copies have filled

  softmax.finish(o, static_cast<float*>(x.lse) + i64(bh) * x.L, i0, x.L);
  store<S, 16>(o, tile_q, row, x.o.at<S>(b, h), x.o.row, i0, x.L, x.dv);
}

}  // namespace narrow_forward

void launch_forward(const Stream& s, const AttentionCall& x) {
  using namespace narrow_forward;
  const i64 blocks = i64(x.B) * x.H * ((x.L + queries - 1) / queries);
  with_options(x, [&](auto options) {
    with_size<32, 64, 96, 128>(x, [&](auto size) {
      const LaunchShape shape{blocks_for(blocks, 1), threads, Shape<size, options>::bytes};
      x.type == DType::bf16 ? launch_kernel(s, shape, forward<__nv_bfloat16, size, options>, x)
                            : launch_kernel(s, shape, forward<__half, size, options>, x);
    });
  });
}

}  // namespace tg::cuda::attention
