// The backward of attention on tensor cores (004 §D), without atomics: a pass over keys for z_K and z_V and
// one over queries for z_Q. Both make P = exp(A − ξ) and z_A = P ⊛ (z_O·Vᵀ − u) again, in registers, in the
// layout in which they are the left operand of the next product.
#include "backends/cuda/attention/score.cuh"

namespace tg::cuda {

using namespace tiles;

namespace {

// ---- z_V = Σ (P ⊛ D)ᵀ·z_O, z_K = Σ z_Aᵀ·q·scale ----

// Four warps, so that two blocks share a multiprocessor. A warp with 32 keys reads shared memory less often
// than one with 16, where registers allow it.
template <int D, attn::Options options>
struct KeyPass {
  static constexpr int groups = D <= 64 && options != attn::any ? 2 : 1;  // of 16 keys, per warp
  static constexpr int threads = 128, keys = threads / 32 * 16 * groups;
  static constexpr int queries = options == attn::none                      ? (D > 64 ? 64 : 32)
                                 : D == 64 && options == attn::only_dropout ? 16
                                                                            : 32;  // of a tile
  static constexpr int k = 0, v = k + keys * D * 2, q = v + keys * D * 2, z = q + 2 * queries * D * 2,
                       stats = z + 2 * queries * D * 2, ranges = stats + 2 * queries * int(sizeof(float2)),
                       bytes = ranges + int(sizeof(attn::Keys<queries>));
};

// A block for some keys of a key head; the heads of its group one after the other.
template <class S, int D, attn::Options options>
__global__ void __launch_bounds__(KeyPass<D, options>::threads)
    key_gradients(const __grid_constant__ Attention x, const Work work) {
  TG_DYNAMIC_SHARED(memory, 256);
  using At = KeyPass<D, options>;
  constexpr int queries = At::queries, groups = At::groups, threads = At::threads;
  auto& ranges = *reinterpret_cast<attn::Keys<queries>*>(memory + At::ranges);
  const u32 base = shared_address(memory);
  const SharedTile<D> tile_k{base + At::k}, tile_v{base + At::v};
  const auto tile_q = [&](int n) { return SharedTile<D>{base + At::q + n % 2 * queries * D * 2}; };
  const auto tile_z = [&](int n) { return SharedTile<D>{base + At::z + n % 2 * queries * D * 2}; };
  const auto stats = [&](int n) { return reinterpret_cast<float2*>(memory + At::stats) + n % 2 * queries; };
  const int blocks = (x.T + At::keys - 1) / At::keys, j0 = blockIdx.x % blocks * At::keys,
            key_head = blockIdx.x / blocks % x.Hk, b = blockIdx.x / blocks / x.Hk, group = x.H / x.Hk;
  const int warp = threadIdx.x / 32, lane = lane_id(), g = lane / 4, t = lane % 4;

  const int range_tiles = (x.L + range_tile - 1) / range_tile;
  const auto met = attn::tiles_that_meet(work.some + b * range_tiles, range_tiles, j0, j0 + At::keys);
  const int first = met.first * (range_tile / queries),
            last = min(met.last * (range_tile / queries), (x.L + queries - 1) / queries);
  const int all = max(last - first, 0) * group;
  load_rows<At::keys, threads>(tile_k, x.k.at<S>(b, key_head), x.k.row, j0, met.keys.from, met.keys.to, x.d);
  load_rows<At::keys, threads>(tile_v, x.v.at<S>(b, key_head), x.v.row, j0, met.keys.from, met.keys.to, x.dv);
  commit();  // for blocks that no query meets: results pass through these tiles
  const KeyRange rows = attn::queries_of_sequences(x);

  const auto fetch = [&](int n, int h, int i0) {
    load_rows<queries, threads>(tile_q(n), x.q.at<S>(b, h), x.q.row, i0, rows.from, rows.to, x.d);
    load_rows<queries, threads>(tile_z(n), x.z_o.at<S>(b, h), x.z_o.row, i0, rows.from, rows.to, x.dv);
    attn::fetch_stats<queries>(stats(n), x, work, b, h, i0);
    commit();
  };

  Sums<D / 8> zk[groups], zv[groups];
#pragma unroll
  for (int m = 0; m < groups; ++m) zk[m].clear(), zv[m].clear();
  const Dropout<float> dropout(x);
  int next_h = key_head * group, next_tile = first;
  if (all > 0) fetch(0, next_h, next_tile * queries);
  for (int n = 0; n < all; ++n) {
    const int h = next_h, i0 = next_tile * queries;
    if (++next_tile == last) next_tile = first, ++next_h;
    wait<0>();
    __syncthreads();
    if (n + 1 < all) fetch(n + 1, next_h, next_tile * queries);
    const int2 every = work.every[b * range_tiles + i0 / range_tile];
    const bool masked = j0 < every.x || j0 + At::keys > every.y;
    if (masked) {
      ranges.set(x, b, i0);
      __syncthreads();
    }

    Sums<queries / 8> p[groups], za[groups];  // keys × queries
#pragma unroll
    for (int c = 0; c < queries / 8; ++c) {  // z_P − u, but where dropout comes between
      const float4 two = *reinterpret_cast<const float4*>(stats(n) + 8 * c + 2 * t);  // {ξ, u} of two queries
#pragma unroll
      for (int m = 0; m < groups; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          p[m].x[c][e] = 0, za[m].x[c][e] = options != attn::none ? 0 : e % 2 ? -two.w : -two.y;
    }
#pragma unroll(D == 64 && options != attn::none ? 1 : D / 16)
    for (int e = 0; e < D / 16; ++e)
#pragma unroll
      for (int c = 0; c < queries / 16; ++c) {
        const Right qt = right_of_rows(tile_q(n), c * 16, e);
#pragma unroll
        for (int m = 0; m < groups; ++m) mma<S>(p[m], c, left(tile_k, (warp * groups + m) * 16, e), qt);
      }
#pragma unroll(D == 64 && options != attn::none ? 1 : D / 16)
    for (int e = 0; e < D / 16; ++e)
#pragma unroll
      for (int c = 0; c < queries / 16; ++c) {
        const Right zt = right_of_rows(tile_z(n), c * 16, e);
#pragma unroll
        for (int m = 0; m < groups; ++m) mma<S>(za[m], c, left(tile_v, (warp * groups + m) * 16, e), zt);
      }

    if (masked && options != attn::any) {
#pragma unroll
      for (int c = 0; c < queries / 8; ++c)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = 8 * c + 2 * t + e, low = ranges.first[column] - j0 - warp * groups * 16 - g,
                    high = ranges.last[column] - j0 - warp * groups * 16 - g;
#pragma unroll
          for (int r = 0; r < 2 * groups; ++r) {
            float& a = p[r / 2].x[c][r % 2 * 2 + e];
            a = 8 * r >= low && 8 * r < high ? a : -INFINITY;
          }
        }
    }
    const attn::Extras<S> extras(x, b, h);
#pragma unroll
    for (int c = 0; c < queries / 8; ++c) {
      const int column = 8 * c + 2 * t;
      const float4 two = *reinterpret_cast<const float4*>(stats(n) + column);
#pragma unroll
      for (int m = 0; m < groups; ++m) {
        const int key0 = j0 + (warp * groups + m) * 16;
        u32 words[4];
        if (options == attn::only_dropout || (options == attn::any && x.dropout > 0))
          attn::column_words(dropout, b * x.H + h, i0 + column, key0, words);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float &a = p[m].x[c][e], &z = za[m].x[c][e];
          const float lse = e % 2 ? two.z : two.x, u = e % 2 ? two.w : two.y;
          if constexpr (options == attn::any) {
            const int i = i0 + column + e % 2, j = key0 + g + e / 2 * 8;
            bool sees = true;
            if (masked) sees = j >= ranges.first[column + e % 2] && j < ranges.last[column + e % 2];
            float slope;
            a = exp2_fast(extras.score(a, i, j, i < x.L && j < x.T, &slope) - lse);
            const float keep = x.dropout > 0 ? dropout.factor(words[e]) : 1.f;
            z = sees ? a * (z * keep - u) * slope : 0.f;
            a = sees ? a * keep : 0.f;
          } else {
            a = exp2_fast(a * extras.factor - lse);
            if constexpr (options == attn::only_dropout) {
              const float keep = dropout.factor(words[e]);
              z = a * (z * keep - u);
              a *= keep;
            } else {
              z *= a;
            }
          }
        }
      }
    }
#pragma unroll
    for (int c = 0; c < queries / 16; ++c) {
#pragma unroll
      for (int e = 0; e < D / 16; ++e) {
        const Right zo = right(tile_z(n), c, e);
#pragma unroll
        for (int m = 0; m < groups; ++m) mma<S>(zv[m], e, left<S>(p[m], c), zo);
      }
    }
#pragma unroll
    for (int c = 0; c < queries / 16; ++c) {
#pragma unroll
      for (int e = 0; e < D / 16; ++e) {
        const Right qs = right(tile_q(n), c, e);
#pragma unroll
        for (int m = 0; m < groups; ++m) mma<S>(zk[m], e, left<S>(za[m], c), qs);
      }
    }
  }
  wait<0>();
  __syncthreads();
#pragma unroll
  for (int m = 0; m < groups; ++m) {
    const int row = (warp * groups + m) * 16;
#pragma unroll
    for (auto& part : zk[m].x)
#pragma unroll
      for (float& e : part) e *= static_cast<float>(x.scale);
    store_rows<S>(zk[m], tile_k, row, x.z_k.at<S>(b, key_head), x.z_k.row, j0 + row, x.T, x.d);
    store_rows<S>(zv[m], tile_v, row, x.z_v.at<S>(b, key_head), x.z_v.row, j0 + row, x.T, x.dv);
  }
}

// ---- z_Q = z_A·K·scale ----

template <int D, attn::Options options>
struct QueryPass {
  static constexpr int queries = 128, threads = 128,
                       keys = options == attn::none ? (D <= 64 ? 64 : 32) : (D <= 64 ? 32 : 16);
  static constexpr int q = 0, z = q + queries * D * 2, k = z + queries * D * 2, v = k + 2 * keys * D * 2,
                       ranges = v + 2 * keys * D * 2, stats = ranges + int(sizeof(attn::Keys<queries>)),
                       bytes = stats + queries * int(sizeof(float2));
};

// A block for 128 queries of a head, 32 a warp.
template <class S, int D, attn::Options options>
__global__ void __launch_bounds__(QueryPass<D, options>::threads)
    query_gradients(const __grid_constant__ Attention x, const Work work) {
  TG_DYNAMIC_SHARED(memory, 256);
  using At = QueryPass<D, options>;
  constexpr int queries = At::queries, keys = At::keys, threads = At::threads;
  auto& ranges = *reinterpret_cast<attn::Keys<queries>*>(memory + At::ranges);
  const u32 base = shared_address(memory);
  float2* stats = reinterpret_cast<float2*>(memory + At::stats);  // {ξ, u} of each query
  const SharedTile<D> tile_q{base + At::q}, tile_z{base + At::z};
  const auto tile_k = [&](int n) { return SharedTile<D>{base + At::k + n % 2 * keys * D * 2}; };
  const auto tile_v = [&](int n) { return SharedTile<D>{base + At::v + n % 2 * keys * D * 2}; };
  const int tiles = (x.L + queries - 1) / queries, i0 = (tiles - 1 - blockIdx.x % tiles) * queries,
            bh = blockIdx.x / tiles, h = bh % x.H, b = bh / x.H, key_head = h / (x.H / x.Hk);
  const int warp = threadIdx.x / 32, lane = lane_id(), g = lane / 4, t = lane % 4;

  load_rows<queries, threads>(tile_q, x.q.at<S>(b, h), x.q.row, i0, 0, x.L, x.d);
  load_rows<queries, threads>(tile_z, x.z_o.at<S>(b, h), x.z_o.row, i0, 0, x.L, x.dv);
  commit();  // for blocks that meet no key
  ranges.set(x, b, i0);
  attn::load_stats<queries>(stats, x, work, b, h, i0);
  __syncthreads();
  KeyRange some, every;
  ranges.unite(min(queries, x.L - i0), some, every);
  const S* k = x.k.at<S>(b, key_head);
  const S* v = x.v.at<S>(b, key_head);
  const auto fetch = [&](int n) {
    load_rows<keys, threads>(tile_k(n), k, x.k.row, n * keys, some.from, some.to, x.d);
    load_rows<keys, threads>(tile_v(n), v, x.v.row, n * keys, some.from, some.to, x.dv);
    commit();
  };

  const attn::Extras<S> extras(x, b, h);
  const Dropout<float> dropout(x);
  Sums<D / 8> zq[2];
  zq[0].clear(), zq[1].clear();
  const int n_from = some.from / keys, n_to = (some.to + keys - 1) / keys;
  if (n_from < n_to) fetch(n_from);
  for (int n = n_from; n < n_to; ++n) {
    wait<0>();
    __syncthreads();
    if (n + 1 < n_to) fetch(n + 1);
    const int j0 = n * keys;
    const bool masked = j0 < every.from || j0 + keys > every.to;

    Sums<keys / 8> p[2], za[2];
#pragma unroll
    for (int r = 0; r < 4; ++r) {  // z_P − u, but where dropout comes between
      const float u = options != attn::none ? 0.f : stats[warp * 32 + r * 8 + g].y;
#pragma unroll
      for (int c = 0; c < keys / 8; ++c)
#pragma unroll
        for (int e = 0; e < 2; ++e) p[r / 2].x[c][r % 2 * 2 + e] = 0, za[r / 2].x[c][r % 2 * 2 + e] = -u;
    }
#pragma unroll 2
    for (int e = 0; e < D / 16; ++e) {
      const Left q0 = left(tile_q, warp * 32, e), q1 = left(tile_q, warp * 32 + 16, e);
#pragma unroll
      for (int c = 0; c < keys / 16; ++c) {
        const Right kt = right_of_rows(tile_k(n), c * 16, e);
        mma<S>(p[0], c, q0, kt), mma<S>(p[1], c, q1, kt);
      }
    }
#pragma unroll 2
    for (int e = 0; e < D / 16; ++e) {
      const Left z0 = left(tile_z, warp * 32, e), z1 = left(tile_z, warp * 32 + 16, e);
#pragma unroll
      for (int c = 0; c < keys / 16; ++c) {
        const Right vt = right_of_rows(tile_v(n), c * 16, e);
        mma<S>(za[0], c, z0, vt), mma<S>(za[1], c, z1, vt);
      }
    }
    if (masked && options != attn::any) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = warp * 32 + r * 8 + g, low = ranges.first[row] - j0 - 2 * t,
                  high = ranges.last[row] - j0 - 2 * t;
#pragma unroll
        for (int c = 0; c < keys / 8; ++c)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& a = p[r / 2].x[c][r % 2 * 2 + e];
            a = 8 * c + e >= low && 8 * c + e < high ? a : -INFINITY;
          }
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int c = 0; c < keys / 8; ++c) {
        const int row = warp * 32 + m * 16 + g, column = 8 * c + 2 * t;
        u32 words[4];
        if (options == attn::only_dropout || (options == attn::any && x.dropout > 0))
          attn::row_words(dropout, bh, i0 + row, j0 + 8 * c, words);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float2 own = stats[row + e / 2 * 8];
          const float a = p[m].x[c][e];
          float& z = za[m].x[c][e];
          if constexpr (options == attn::any) {
            const int at = row + e / 2 * 8, j = j0 + column + e % 2;
            bool sees = true;
            if (masked) sees = j >= ranges.first[at] && j < ranges.last[at];
            float slope;
            const float value =
                exp2_fast(extras.score(a, i0 + at, j, i0 + at < x.L && j < x.T, &slope) - own.x);
            const float keep = x.dropout > 0 ? dropout.factor(words[e]) : 1.f;
            z = sees ? value * (z * keep - own.y) * slope : 0.f;
          } else {
            const float value = exp2_fast(a * extras.factor - own.x);
            if constexpr (options == attn::only_dropout)
              z = value * (z * dropout.factor(words[e]) - own.y);
            else
              z *= value;
          }
        }
      }
#pragma unroll
    for (int c = 0; c < keys / 16; ++c) {
      const Left a0 = left<S>(za[0], c), a1 = left<S>(za[1], c);
#pragma unroll
      for (int e = 0; e < D / 16; ++e) {
        const Right ks = right(tile_k(n), c, e);
        mma<S>(zq[0], e, a0, ks), mma<S>(zq[1], e, a1, ks);
      }
    }
  }
  wait<0>();
  __syncthreads();
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (auto& part : zq[m].x)
#pragma unroll
      for (float& e : part) e *= static_cast<float>(x.scale);
    const int row = warp * 32 + m * 16;
    store_rows<S>(zq[m], tile_q, row, x.z_q.at<S>(b, h), x.z_q.row, i0 + row, x.L, x.d);
  }
}

}  // namespace

void launch_mma_backward(const Stream& s, const Attention& x, const Work& work) {
  attn::with_variant(x, [&](auto type, auto padded, auto options) {
    using S = decltype(type);
    // 96 has no kernels of its own: they take long to compile, and only few or short sequences come here.
    constexpr int size = padded <= 32 ? 32 : padded <= 64 ? 64 : 128;
    const auto run = [&](auto kernel, i64 blocks, unsigned threads, std::size_t bytes) {
      if (blocks == 0) return;
      launch_kernel(s, {blocks_for(blocks, 1), threads, bytes}, kernel, x, work);
    };
    using K = KeyPass<size, options>;
    using Q = QueryPass<size, options>;
    run(key_gradients<S, size, options>, i64(x.B) * x.Hk * ((x.T + K::keys - 1) / K::keys), K::threads,
        K::bytes);
    run(query_gradients<S, size, options>, i64(x.B) * x.H * ((x.L + Q::queries - 1) / Q::queries), Q::threads,
        Q::bytes);
  });
}

}  // namespace tg::cuda
