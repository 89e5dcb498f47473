// The forward of attention on tensor cores (FlashAttention-2, 004 §D): 128 queries a block, 32 a warp, keys
// in tiles of 32 or 64 that arrive while the tile before is worked on.
//
//   c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum, G ← exp(c_old − c)·G + exp(A − c)·V
//   O = G ⊘ π, ξ = c + log π
#include "backends/cuda/kernels/attention_mma.cuh"

namespace tg::cuda {

using namespace tiles;

namespace {

constexpr int queries = 128, threads = 128;
constexpr float unmoved = 8;  // c keeps its value until a score is 2⁸ times above: any c near the top will do

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
  extern __shared__ __align__(256) unsigned char memory[];
  using At = Shared<D, options>;
  constexpr int keys = At::keys;
  auto& ranges = *reinterpret_cast<attn::Keys<queries>*>(memory + At::ranges);
  const u32 base = shared_address(memory);
  const SharedTile<D> tile_q{base + At::q};
  const int tiles = (x.L + queries - 1) / queries, i0 = (tiles - 1 - blockIdx.x % tiles) * queries,
            bh = blockIdx.x / tiles, h = bh % x.H, b = bh / x.H, key_head = h / (x.H / x.Hk);
  const int warp = threadIdx.x / 32, lane = lane_id(), g = lane / 4, t = lane % 4;

  load_rows<queries, threads>(tile_q, x.q.at<S>(b, h), x.q.row, i0, 0, x.L, x.d);
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

  // Of rows g and g + 8 of the warp's two groups of 16 queries.
  Sums<D / 8> o[2];
  float top[4], sum[4];
  o[0].clear(), o[1].clear();
  for (int r = 0; r < 4; ++r) {  // the sink is a first key with value 0
    top[r] = x.sink ? widen(static_cast<const S*>(x.sink)[h]) * static_cast<float>(log2_e) : -INFINITY;
    sum[r] = top[r] > -INFINITY && t == 0 ? 1 : 0;
  }
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
#pragma unroll 4
    for (int e = 0; e < D / 16; ++e) {
      const Left a0 = left(tile_q, warp * 32, e), a1 = left(tile_q, warp * 32 + 16, e);
#pragma unroll
      for (int c = 0; c < keys / 16; ++c) {
        const Right kt = right_of_rows(tile_k(n), c * 16, e);
        mma<S>(s[0], c, a0, kt);
        mma<S>(s[1], c, a1, kt);
      }
    }

    const int j0 = n * keys;
    if constexpr (options == attn::any) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int i = i0 + warp * 32 + r / 2 * 16 + r % 2 * 8 + g;
#pragma unroll
        for (int p = 0; p < keys / 8; ++p)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& a = s[r / 2].x[p][r % 2 * 2 + e];
            const int j = j0 + 8 * p + 2 * t + e;
            float slope;
            a = extras.score(a, i, j, i < x.L && j < x.T, &slope);
          }
      }
    }
    if (j0 < every.from || j0 + keys > every.to) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = warp * 32 + r / 2 * 16 + r % 2 * 8 + g, first = ranges.first[row] - j0 - 2 * t,
                  last = ranges.last[row] - j0 - 2 * t;
#pragma unroll
        for (int p = 0; p < keys / 8; ++p)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& a = s[r / 2].x[p][r % 2 * 2 + e];
            a = 8 * p + e >= first && 8 * p + e < last ? a : -INFINITY;
          }
      }
    }

    float most[4];
    bool moves = false;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      most[r] = -INFINITY;
#pragma unroll
      for (int p = 0; p < keys / 8; ++p)
        most[r] = fmaxf(most[r], fmaxf(s[r / 2].x[p][r % 2 * 2], s[r / 2].x[p][r % 2 * 2 + 1]));
      most[r] *= factor;
      moves |= most[r] > top[r] + unmoved;
    }
    if (__any_sync(~0u, moves)) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float now = fmaxf(top[r], row_max(most[r]));
        const float shrink = now == -INFINITY ? 1.f : exp2_fast(top[r] - now);
        top[r] = now;
        sum[r] *= shrink;
#pragma unroll
        for (int p = 0; p < D / 8; ++p)
          o[r / 2].x[p][r % 2 * 2] *= shrink, o[r / 2].x[p][r % 2 * 2 + 1] *= shrink;
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const float c = top[r] == -INFINITY ? 0.f : top[r];
#pragma unroll
      for (int p = 0; p < keys / 8; ++p)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& a = s[r / 2].x[p][r % 2 * 2 + e];
          a = exp2_fast(a * factor - c);
          sum[r] += a;
        }
    }
    if (options == attn::only_dropout || (options == attn::any && x.dropout > 0)) {
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int p = 0; p < keys / 8; ++p) {
          u32 w[4];
          attn::row_words(dropout, bh, i0 + warp * 32 + m * 16 + g, j0 + 8 * p, w);
#pragma unroll
          for (int e = 0; e < 4; ++e) s[m].x[p][e] *= dropout.factor(w[e]);
        }
    }
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

#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int i = i0 + warp * 32 + r / 2 * 16 + r % 2 * 8 + g;
    const float all = row_sum(sum[r]), inverse = all == 0 ? 0.f : 1 / all;
    if (t == 0 && i < x.L)
      static_cast<float*>(x.lse)[i64(bh) * x.L + i] =
          all == 0 ? -INFINITY : top[r] * static_cast<float>(ln_2) + logf(all);
#pragma unroll
    for (int p = 0; p < D / 8; ++p)
      o[r / 2].x[p][r % 2 * 2] *= inverse, o[r / 2].x[p][r % 2 * 2 + 1] *= inverse;
  }
#pragma unroll
  for (int m = 0; m < 2; ++m)
    store_rows<S>(o[m], tile_q, warp * 32 + m * 16, x.o.at<S>(b, h), x.o.row, i0 + warp * 32 + m * 16, x.L,
                  x.dv);
}

}  // namespace

void launch_mma_forward(const Stream& s, const Attention& x) {
  const i64 blocks = i64(x.B) * x.H * ((x.L + queries - 1) / queries);
  attn::with_variant(x, [&](auto type, auto size, auto options) {
    const auto kernel = forward<decltype(type), size, options>;
    constexpr int bytes = Shared<size, options>::bytes;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    kernel<<<blocks_for(blocks, 1), threads, bytes, s.stream>>>(x);
  });
}

}  // namespace tg::cuda
