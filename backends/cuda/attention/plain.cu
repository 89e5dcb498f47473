// Attention for any dtype and any head sizes, in plain multiply-adds: forward (FlashAttention-2) [Stratos,
// FlashAttention §D], and backward in a pass over keys for z_K and z_V and one over queries for z_Q, so that
// every sum has one owner and one order. Outputs wider than 64 are computed by several blocks, each of which
// computes the scores again.
#include "backends/cuda/attention/plain.cuh"

#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

namespace plain {

constexpr int chunks_of(int size) {
  return size > 0 ? tiles_of(size) : 1;
}

// The keys that the 64 queries from i0 on attend.
__device__ KeyRange keys_of_tile(const AttentionCall& x, int b, int i0) {
  const int lane = threadIdx.x % 32;
  KeyRange r = keys_of_query(x, b, i0 + lane);
  const KeyRange more = keys_of_query(x, b, i0 + 32 + lane);
  if (r.from == r.to) r = more;
  if (more.from != more.to) r = {min(r.from, more.from), max(r.to, more.to)};
  return warp_union(r);
}

// c ← max(c, a.max), π ← exp(c_old − c)·π + exp(a − c).sum, G ← exp(c_old − c)·G + exp(a − c)·V;
// O = G ⊘ π, ξ = c + log π. A block for 64 queries and 64 columns of O. Tiles begin at multiples of 64 keys,
// whatever queries see.
template <class S, template <class> class KeyRows>
__global__ void __launch_bounds__(threads, sizeof(S) == 4 ? 2 : 1)
    forward(const __grid_constant__ AttentionCall x) {
  using C = compute_t<S>;
  Shared<C>& s = shared_memory<C>();
  const int chunks = chunks_of(x.dv), e0 = blockIdx.x % chunks * edge;
  const auto [bh, b, h, i0] = query_place(x, blockIdx.x / chunks, edge);
  const int key_head = h / (x.H / x.Hk);
  const Own at;
  const KeyRange all = keys_of_tile(x, b, i0);
  const Rows<S> q{x.q.at<S>(b, h), x.q.row, 0, x.L, x.d};
  const auto k = KeyRows<S>::of_head(x, x.k, b, key_head, all, x.d),
             v = KeyRows<S>::of_head(x, x.v, b, key_head, all, x.dv);
  const Score<S> score(x, b, h);
  const Dropout<C> dropout(x);
  KeyRange keys[4];
  C top[4], sum[4], g[4][4] = {};  // c, π, G
  for (int r = 0; r < 4; ++r) {
    keys[r] = keys_of_query(x, b, i0 + at.i + r);
    // The sink is a first key with value 0.
    top[r] = x.sink ? widen(static_cast<const S*>(x.sink)[h]) * static_cast<C>(log2_e) : C(-INFINITY);
    sum[r] = top[r] > C(-INFINITY) ? 1 : 0;
  }
  for (int j0 = all.from / edge * edge; j0 < all.to; j0 += edge) {
    C a[4][4];
    multiply_rows(a, s, q, i0, k, j0);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      C most = C(-INFINITY), slope;
      for (int c = 0; c < 4; ++c) {
        const int j = j0 + at.j + c;
        const bool sees = j >= keys[r].from && j < keys[r].to;
        a[r][c] = sees ? score.of(a[r][c], i0 + at.i + r, j, true, &slope) : C(-INFINITY);
        most = max(most, a[r][c]);
      }
      for (int step = 8; step > 0; step /= 2) most = max(most, __shfl_xor_sync(~0u, most, step));
      most = max(most, top[r]);
      const C base = most == C(-INFINITY) ? C(0) : most, shrink = exp2(top[r] - base);
      C added = 0;
      for (int c = 0; c < 4; ++c) {
        a[r][c] = exp2(a[r][c] - base);
        added += a[r][c];
      }
      for (int step = 8; step > 0; step /= 2) added += __shfl_xor_sync(~0u, added, step);
      top[r] = most;
      sum[r] = sum[r] * shrink + added;
      for (int c = 0; c < 4; ++c) g[r][c] *= shrink;
      if (x.dropout > 0) {
        const Words words = dropout.words(bh, i0 + at.i + r, j0 + at.j);
        for (int c = 0; c < 4; ++c) a[r][c] *= dropout.factor(words[c]);
      }
    }
    put(s, a, true);
    multiply_tile(g, s, v, j0, e0);
  }
  for (int r = 0; r < 4; ++r) {
    const int i = i0 + at.i + r;
    if (e0 == 0 && at.j == 0 && i < x.L)
      static_cast<C*>(x.lse)[i64(bh) * x.L + i] =
          sum[r] == 0 ? C(-INFINITY) : top[r] * static_cast<C>(ln_2) + log(sum[r]);
    const C inverse = sum[r] == 0 ? C(0) : 1 / sum[r];
    for (int c = 0; c < 4; ++c) g[r][c] *= inverse;
  }
  store(x.o.at<S>(b, h), x.o.row, i0, x.L, e0, x.dv, g, C(1));
}

// z_V = Σ (P ⊛ keep)ᵀ·z_O, z_K = Σ z_Aᵀ·q·scale over the queries of the group's heads, in order. A block for
// 64 keys and 64 columns of each.
template <class S>
__global__ void __launch_bounds__(threads, 1)
    key_gradients(const __grid_constant__ AttentionCall x, const compute_t<S>* u, const int2* ranges) {
  using C = compute_t<S>;
  Shared<C>& s = shared_memory<C>();
  const int chunks = chunks_of(max(x.d, x.dv)), e0 = blockIdx.x % chunks * edge, tiles = tiles_of(x.L),
            group = x.H / x.Hk;
  const auto [bk, b, key_head, j0] = key_place(x, blockIdx.x / chunks, edge);
  const Dropout<C> dropout(x);
  C zk[4][4] = {}, zv[4][4] = {};
  for (int h = key_head * group; h < (key_head + 1) * group; ++h)
    for (int t = 0; t < tiles; ++t) {
      const int2 all = ranges[b * tiles + t];
      if (all.x >= j0 + edge || all.y <= j0) continue;
      const Rows<S> k{x.k.at<S>(b, key_head), x.k.row, all.x, all.y, x.d},
          v{x.v.at<S>(b, key_head), x.v.row, all.x, all.y, x.dv};
      const Queries<S> queries(x, u, b, h, t * edge);
      C p[4][4], za[4][4];
      score_gradients(p, za, s, x, queries, k, v, j0, dropout, true);
      if (e0 < x.dv) {
        put(s, p, false);
        multiply_tile(zv, s, queries.z, queries.i0, e0);
      }
      if (e0 < x.d) {
        put(s, za, false);
        multiply_tile(zk, s, queries.q, queries.i0, e0);
      }
    }
  store(x.z_k.at<S>(b, key_head), x.z_k.row, j0, x.T, e0, x.d, zk, static_cast<C>(x.scale));
  store(x.z_v.at<S>(b, key_head), x.z_v.row, j0, x.T, e0, x.dv, zv, C(1));
}

// z_Q = z_A·K·scale. A block for 64 queries and 64 columns.
template <class S>
__global__ void __launch_bounds__(threads, 1)
    query_gradients(const __grid_constant__ AttentionCall x, const compute_t<S>* u, const int2* ranges) {
  using C = compute_t<S>;
  Shared<C>& s = shared_memory<C>();
  const int chunks = chunks_of(x.d), e0 = blockIdx.x % chunks * edge, tiles = tiles_of(x.L);
  const auto [bh, b, h, i0] = query_place(x, blockIdx.x / chunks, edge);
  const int key_head = h / (x.H / x.Hk);
  const int2 all = ranges[b * tiles + i0 / edge];
  const Rows<S> k{x.k.at<S>(b, key_head), x.k.row, all.x, all.y, x.d},
      v{x.v.at<S>(b, key_head), x.v.row, all.x, all.y, x.dv};
  const Queries<S> queries(x, u, b, h, i0);
  const Dropout<C> dropout(x);
  C zq[4][4] = {};
  for (int j0 = all.x / edge * edge; j0 < all.y; j0 += edge) {
    C p[4][4], za[4][4];
    score_gradients(p, za, s, x, queries, k, v, j0, dropout, true);
    put(s, za, true);
    multiply_tile(zq, s, k, j0, e0);
  }
  store(x.z_q.at<S>(b, h), x.z_q.row, queries.i0, x.L, e0, x.d, zq, static_cast<C>(x.scale));
}

}  // namespace plain

void launch_plain_forward(const Stream& s, const AttentionCall& x, const Workspace&, const Powers*) {
  using namespace plain;
  with_float(x.type, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    launch<compute_t<S>>(x.table ? forward<S, PagedRows> : forward<S, Rows>, s,
                         x.B * x.H * tiles_of(x.L) * chunks_of(x.dv), x);
  });
}

void launch_plain_backward(const Stream& s, const AttentionCall& x, const Workspace& work, const Powers*) {
  using namespace plain;
  with_float(x.type, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    using C = compute_t<S>;
    const C* u = static_cast<const C*>(work.u);
    launch<C>(key_gradients<S>, s, x.B * x.Hk * tiles_of(x.T) * chunks_of(max(x.d, x.dv)), x, u, work.some);
    launch<C>(query_gradients<S>, s, x.B * x.H * tiles_of(x.L) * chunks_of(x.d), x, u, work.some);
  });
}

}  // namespace tg::cuda::attention
