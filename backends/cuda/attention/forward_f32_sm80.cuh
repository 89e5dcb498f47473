// The forward of attention in f32 on tensor cores, for one number of terms: forward_sm80.cu, with
// the tiles of terms.cuh. P is at most 2⁸ and needs no power of two of its own.
//
//   c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum, G ← exp(c_old − c)·G + exp(A − c)·V
//   O = G ⊘ π, ξ = c + log π
#pragma once

#include "backends/cuda/attention/softmax.cuh"
#include "backends/cuda/attention/split_terms.cuh"

namespace tg::cuda {

using namespace tiles;

namespace {

// Four warps. One with 32 queries reads shared memory half as often as one with 16, where registers hold O.
template <int T, int D, attn::Options options>
struct Forward {
  static constexpr int groups = D <= 64 ? 2 : 1;  // of 16 queries, per warp
  static constexpr int threads = 128, queries = threads / 32 * 16 * groups,
                       keys = D == 32                 ? 32
                              : D == 128              ? (T == 1 ? 32 : 16)
                              : options == attn::none ? (T == 1 ? 64 : 32)
                                                      : (T == 1 ? 32 : 16);  // of a tile
  static constexpr int tile = keys * D * T * 2;                              // bytes
  static constexpr int q = 0, k = q + queries * D * T * 2, v = k + 2 * tile, ranges = v + 2 * tile,
                       bytes = ranges + int(sizeof(attn::Keys<queries>));
};

// A block for some queries of a head.
template <int T, int D, attn::Options options>
__global__ void __launch_bounds__(Forward<T, D, options>::threads, 2)
    forward(const __grid_constant__ Attention x) {
  TG_DYNAMIC_SHARED(memory, 1024);
  using At = Forward<T, D, options>;
  constexpr int groups = At::groups, threads = At::threads, queries = At::queries, keys = At::keys;
  auto& ranges = *reinterpret_cast<attn::Keys<queries>*>(memory + At::ranges);
  const u32 base = shared_address(memory);
  const SharedTile<T * D> tile_q{base + At::q};
  const auto tile_k = [&](int n) { return SharedTile<T * D>{base + At::k + n % 2 * At::tile}; };
  const auto tile_v = [&](int n) { return SharedTile<T * D>{base + At::v + n % 2 * At::tile}; };
  const int tiles = (x.L + queries - 1) / queries, i0 = (tiles - 1 - blockIdx.x % tiles) * queries,
            bh = blockIdx.x / tiles, h = bh % x.H, b = bh / x.H, key_head = h / (x.H / x.Hk);
  const int row = threadIdx.x / 32 * 16 * groups;  // the warp's first

  load_rows<queries, threads>(tile_q, x.q.at<__half>(b, h), x.q.row, i0, 0, x.L, T * D);
  commit();
  ranges.set(x, b, i0);
  __syncthreads();
  KeyRange some, every;
  ranges.unite(min(queries, x.L - i0), some, every);

  const __half* k = x.k.at<__half>(b, key_head);
  const __half* v = x.v.at<__half>(b, key_head);
  const auto fetch = [&](int n) {
    load_rows<keys, threads>(tile_k(n), k, x.k.row, n * keys, some.from, some.to, T * D);
    load_rows<keys, threads>(tile_v(n), v, x.v.row, n * keys, some.from, some.to, T * D);
    commit();
  };

  Sums<D / 8> o[groups];
#pragma unroll
  for (int m = 0; m < groups; ++m) o[m].clear();
  attn::OnlineSoftmax<groups> softmax(x.sink ? static_cast<const float*>(x.sink)[h] : -INFINITY);
  const Powers powers = x.powers[b * x.Hk + key_head];
  attn::Extras<float> extras(x, b, h);
  extras.factor *= attn::power_of_two(-powers.q - powers.k);
  Dropout<float> dropout(x);
  const float kept = dropout.kept;
  dropout.kept = 1;  // what is kept grows at the end
  const float factor = options == attn::any ? 1 : extras.factor;
  const int n_from = some.from / keys, n_to = (some.to + keys - 1) / keys;
  if (n_from < n_to) fetch(n_from);
  for (int n = n_from; n < n_to; ++n) {
    wait<0>();
    __syncthreads();
    if (n + 1 < n_to) fetch(n + 1);

    Sums<keys / 8> s[groups];
#pragma unroll
    for (int m = 0; m < groups; ++m) s[m].clear();
    add_products_of_rows<T>(s, tile_q, row, tile_k(n));
    const int j0 = n * keys;
    if constexpr (options == attn::any) attn::apply(extras, s, x, i0 + row, j0);
    if (j0 < every.from || j0 + keys > every.to) attn::mask(s, ranges, row, j0);
    softmax.step(s, o, factor);
    if (options == attn::only_dropout || (options == attn::any && x.dropout > 0))
      attn::drop(s, dropout, bh, i0 + row, j0);
    add_products<T>(o, s, tile_v(n));
  }
  wait<0>();
  softmax.finish(o, static_cast<float*>(x.lse) + i64(bh) * x.L, i0 + row, x.L);
#pragma unroll
  for (int m = 0; m < groups; ++m) {
    attn::scale(o[m], kept, -powers.v);
    store_rows(o[m], x.o.at<float>(b, h), x.o.row, i0 + row + 16 * m, x.L, x.dv);
  }
}

template <int T>
void launch(const Stream& s, const Attention& x) {
  attn::with_width(x, [&](auto size) {
    attn::with_options(x, [&](auto options) {
      using At = Forward<T, size, options>;
      const i64 blocks = i64(x.B) * x.H * ((x.L + At::queries - 1) / At::queries);
      launch_kernel(s, {blocks_for(blocks, 1), At::threads, At::bytes}, forward<T, size, options>, x);
    });
  });
}

}  // namespace

}  // namespace tg::cuda
