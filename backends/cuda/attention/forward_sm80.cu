// The forward of attention on tensor cores (FlashAttention-2, 004 §D): 128 queries a block, 32 a warp, keys
// in tiles of 32 or 64 that arrive while the tile before is worked on.
//
//   c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum, G ← exp(c_old − c)·G + exp(A − c)·V
//   O = G ⊘ π, ξ = c + log π
#include "backends/cuda/attention/softmax.cuh"

namespace tg::cuda {

using namespace tiles;

namespace {

constexpr int queries = 128, threads = 128;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool has_uniform_addresses = false;  // what is the same for a block takes registers of each thread
#else
constexpr bool has_uniform_addresses = true;
#endif

template <int D, attn::Options options>
struct Shared {
  static constexpr int keys =
      D == 96 || (D >= 64 && options != attn::none) ? 32 : 64;  // of a tile: as many as registers hold
  static constexpr int q = 0, k = q + queries * D * 2, v = k + 2 * keys * D * 2,
                       ranges = v + 2 * keys * D * 2, bytes = ranges + sizeof(attn::Keys<queries>);
};

// A block for 128 queries of a head.
template <class S, int D, attn::Options options>
__global__ void __launch_bounds__(threads) forward(const __grid_constant__ Attention x) {
  TG_DYNAMIC_SHARED(memory, 256);
  using At = Shared<D, options>;
  constexpr int keys = At::keys, columns = keys / 16, products = D / 16 * columns;  // of Q·Kᵀ, each 16 keys
  auto& ranges = *reinterpret_cast<attn::Keys<queries>*>(memory + At::ranges);
  const u32 base = shared_address(memory);
  const SharedTile<D> tile_q{base + At::q};
  const int tiles = (x.L + queries - 1) / queries, i0 = (tiles - 1 - blockIdx.x % tiles) * queries,
            bh = blockIdx.x / tiles, h = bh % x.H, b = bh / x.H, key_head = h / (x.H / x.Hk);
  const int row = threadIdx.x / 32 * 32;

  load_rows<queries, threads>(tile_q, x.q.at<S>(b, h), x.q.row, i0, 0, x.L, x.d);
  commit();  // for blocks that fetch no keys
  ranges.set(x, b, i0);
  __syncthreads();
  KeyRange some, every;
  ranges.unite(min(queries, x.L - i0), some, every);

  const S* k = x.k.at<S>(b, key_head);
  const S* v = x.v.at<S>(b, key_head);
  const auto tile_k = [&](int n) { return SharedTile<D>{base + At::k + n % 2 * keys * D * 2}; };
  const auto tile_v = [&](int n) { return SharedTile<D>{base + At::v + n % 2 * keys * D * 2}; };
  const auto fetch = [&](int n) {
    load_rows<keys, threads>(tile_k(n), k, x.k.row, n * keys, some.from, some.to, x.d);
    load_rows<keys, threads>(tile_v(n), v, x.v.row, n * keys, some.from, some.to, x.dv);
    commit();
  };

  Sums<D / 8> o[2];  // of the warp's two groups of 16 queries
  o[0].clear(), o[1].clear();
  attn::OnlineSoftmax<2> softmax(x.sink ? widen(static_cast<const S*>(x.sink)[h]) : -INFINITY);
  const attn::Extras<S> extras(x, b, h);
  const Dropout<float> dropout(x);
  const float factor = options == attn::any ? 1 : extras.factor;
  const int n_from = some.from / keys, n_to = (some.to + keys - 1) / keys;
  if (n_from < n_to) fetch(n_from);
  for (int n = n_from; n < n_to; ++n) {
    wait<0>();
    __syncthreads();
    if (n + 1 < n_to) fetch(n + 1);

    Sums<keys / 8> s[2];
    s[0].clear(), s[1].clear();
    // multiply_rows, but of keys alone, a product ahead: beside the sums over values there are no registers
    // for all operands of a step.
    const auto keys_of = [&](int i) { return right_of_rows(tile_k(n), i % columns * 16, i / columns); };
    Left q[2];
    Right kt[2] = {keys_of(0)};
#pragma unroll(has_uniform_addresses || D < 128 ? products : columns)
    for (int i = 0; i < products; ++i) {
      if (i + 1 < products) kt[(i + 1) % 2] = keys_of(i + 1);
      if (i % columns == 0) q[0] = left(tile_q, row, i / columns), q[1] = left(tile_q, row + 16, i / columns);
#pragma unroll
      for (int m = 0; m < 2; ++m) mma<S>(s[m], i % columns, q[m], kt[i % 2]);
    }

    const int j0 = n * keys;
    if constexpr (options == attn::any) attn::apply(extras, s, x, i0 + row, j0);
    if (j0 < every.from || j0 + keys > every.to) attn::mask(s, ranges, row, j0);
    softmax.step(s, o, factor);
    if (options == attn::only_dropout || (options == attn::any && x.dropout > 0))
      attn::drop(s, dropout, bh, i0 + row, j0);
#pragma unroll
    for (int c = 0; c < keys / 16; ++c) {
      const Left p0 = left<S>(s[0], c), p1 = left<S>(s[1], c);
#pragma unroll
      for (int e = 0; e < D / 16; ++e) {
        const Right values = right(tile_v(n), c, e);
        mma<S>(o[0], e, p0, values);
        mma<S>(o[1], e, p1, values);
      }
    }
  }
  wait<0>();
  __syncthreads();  // the queries' tile is written by rows of a warp, which other warps' copies have filled

  softmax.finish(o, static_cast<float*>(x.lse) + i64(bh) * x.L, i0 + row, x.L);
#pragma unroll
  for (int m = 0; m < 2; ++m)
    store_rows<S>(o[m], tile_q, row + m * 16, x.o.at<S>(b, h), x.o.row, i0 + row + m * 16, x.L, x.dv);
}

}  // namespace

void launch_mma_forward(const Stream& s, const Attention& x) {
  const i64 blocks = i64(x.B) * x.H * ((x.L + queries - 1) / queries);
  attn::with_variant(x, [&](auto type, auto size, auto options) {
    const auto kernel = forward<decltype(type), size, options>;
    constexpr int bytes = Shared<size, options>::bytes;
    launch_kernel(s, {blocks_for(blocks, 1), threads, bytes}, kernel, x);
  });
}

}  // namespace tg::cuda
