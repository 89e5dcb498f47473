// Attention for any dtype and head size with plain multiply-adds: forward (FlashAttention-2) [Stratos,
// FlashAttention §D], and backward. The backward has one pass over keys for z_K and z_V, and one pass over
// queries for z_Q. Every gradient is accumulated by one thread in a fixed order. For outputs wider than 64
// columns, several blocks each recompute the scores.
#include "backends/cuda/attention/plain.cuh"

#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/ropes.h"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/kernels/rotation.cuh"

namespace tg::cuda::attention {

namespace plain {

constexpr int chunks_of(int size) {
  return size > 0 ? tiles_of(size) : 1;
}

// The keys that the 64 queries from i0 see.
__device__ KeyRange keys_of_tile(const AttentionCall& x, int b, int i0) {
  const int lane = threadIdx.x % 32;
  KeyRange r = keys_visible_to(x, b, i0 + lane);
  const KeyRange more = keys_visible_to(x, b, i0 + 32 + lane);
  if (r.from == r.to) r = more;
  if (more.from != more.to) r = {min(r.from, more.from), max(r.to, more.to)};
  return warp_union(r);
}

// Forward: c ← max(c, a.max), π ← exp(c_old − c)·π + exp(a − c).sum, G ← exp(c_old − c)·G + exp(a − c)·V;
// finally O = G ⊘ π, ξ = c + log π. A block computes 64 queries and 64 columns of O. Tiles always begin at
// multiples of 64 keys.
template <class S, template <class> class KeyRows>
__global__ void __launch_bounds__(threads, sizeof(S) == 4 ? 2 : 1)
    forward(const __grid_constant__ AttentionCall x) {
  using C = compute_t<S>;
  Shared<C>& s = shared_memory<C>();
  const int chunks = chunks_of(x.dv), e0 = blockIdx.x % chunks * edge;
  const auto [bh, b, h, i0] = query_position(x, blockIdx.x / chunks, edge);
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
    keys[r] = keys_visible_to(x, b, i0 + at.i + r);
    // The sink counts as a first key with value 0.
    top[r] = x.sink ? widen(static_cast<const S*>(x.sink)[h]) : C(-INFINITY);
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
      const C base = most == C(-INFINITY) ? C(0) : most, unit = static_cast<C>(log2_e),
              shrink = exp2((top[r] - base) * unit);
      C added = 0;
      for (int c = 0; c < 4; ++c) {
        a[r][c] = exp2((a[r][c] - base) * unit);
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
    if (e0 == 0 && at.j == 0 && i < x.L) {
      const C log_pi = log(sum[r]), xi = sum[r] == 0 ? C(-INFINITY) : top[r] + log_pi;
      static_cast<C*>(x.lse)[i64(bh) * x.L + i] = xi;
      if (x.lse_rest)
        static_cast<C*>(x.lse_rest)[i64(bh) * x.L + i] = sum[r] == 0 ? C(0) : (top[r] - xi) + log_pi;
    }
    const C inverse = sum[r] == 0 ? C(0) : 1 / sum[r];
    for (int c = 0; c < 4; ++c) g[r][c] *= inverse;
  }
  store(x.o.at<S>(b, h), x.o.row, i0, x.L, e0, x.dv, g, C(1));
}

// Keys that at least one query of a tile sees; equal in all threads.
template <bool far_only>
__device__ KeyRange keys_of_tile(const AttentionCall& x, const Workspace& work, int b, int tile) {
  if (far_only) return keys_of_tile(x, b, tile * edge);
  const int2 all = work.some[b * tiles_of(x.L) + tile];
  return {all.x, all.y};
}
// Whether a head's tile contains a far row.
__device__ bool has_far_rows(const AttentionCall& x, const Workspace& work, int b, int h, int tile) {
  const int groups = Workspace::far_groups(x), first = tile * (edge / 16),
            end = min(first + edge / 16, groups);
  bool any = false;
  for (int n = first; n < end; ++n) any |= work.far[(i64(b) * x.H + h) * groups + n] != 0;
  return any;
}

// Applies the inverse rotation to a tile of whole rows of 64 elements. The kernels for the other gradients do
// the same. Called by all threads.
template <class C>
__device__ void rotate_back(C (&sums)[4][4], Shared<C>& s, const Ropes& ropes, int row0, C factor) {
  if (!ropes.table) return;
  const Own at;
  put(s, sums, false);
  __syncthreads();
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < 4; ++c) {
      const int row = min(row0 + at.i + r, ropes.rows - 1), column = at.j + c, pair = column % ropes.pairs;
      const float* const table = ropes.table + i64(row) * 2 * ropes.pairs;
      C a = s.p[at.i + r][pair], b = s.p[at.i + r][pair + ropes.pairs];
      rotate_pair(a, b, C(table[pair]), C(-table[ropes.pairs + pair]));
      sums[r][c] = column < ropes.pairs ? a : b;
    }
}

// z_V = Σ (P ⊛ keep)ᵀ·z_O and z_K = Σ z_Aᵀ·q·scale over the queries of the group's heads, in order. A block
// computes 64 keys and 64 columns of each. far_only adds the contributions of far rows to the results of
// other kernels.
template <bool far_only, class S>
__device__ void key_item(const AttentionCall& x, const Workspace& work, const TilePosition& place, int e0,
                         const Ropes& ropes) {
  using C = compute_t<S>;
  Shared<C>& s = shared_memory<C>();
  const auto [bk, b, key_head, j0] = place;
  const int tiles = tiles_of(x.L), group = x.H / x.Hk;
  const Dropout<C> dropout(x);
  C zk[4][4] = {}, zv[4][4] = {};
  bool any = false;
  for (int h = key_head * group; h < (key_head + 1) * group; ++h)
    for (int t = 0; t < tiles; ++t) {
      if (far_only && !has_far_rows(x, work, b, h, t)) continue;
      const KeyRange all = keys_of_tile<far_only>(x, work, b, t);
      if (all.from >= j0 + edge || all.to <= j0) continue;
      any = true;
      const plain::Rows<S> k{x.k.at<S>(b, key_head), x.k.row, all.from, all.to, x.d},
          v{x.v.at<S>(b, key_head), x.v.row, all.from, all.to, x.dv};
      const Queries<S> queries(x, work, b, h, t * edge, far_only);
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
  if (far_only && !any) return;
  if (far_only) rotate_back(zk, s, ropes, j0, C(1));
  store<far_only>(x.z_k.at<S>(b, key_head), x.z_k.row, j0, x.T, e0, x.d, zk, static_cast<C>(x.scale));
  store<far_only>(x.z_v.at<S>(b, key_head), x.z_v.row, j0, x.T, e0, x.dv, zv, C(1));
}

// z_Q = z_A·K·scale for 64 queries and 64 columns, computed by a block. far_only: only for far rows.
template <bool far_only, class S>
__device__ void query_item(const AttentionCall& x, const Workspace& work, const TilePosition& place, int e0,
                           const Ropes& ropes) {
  using C = compute_t<S>;
  Shared<C>& s = shared_memory<C>();
  const auto [bh, b, h, i0] = place;
  if (far_only && !has_far_rows(x, work, b, h, i0 / edge)) return;
  const int key_head = h / (x.H / x.Hk);
  const KeyRange all = keys_of_tile<far_only>(x, work, b, i0 / edge);
  const plain::Rows<S> k{x.k.at<S>(b, key_head), x.k.row, all.from, all.to, x.d},
      v{x.v.at<S>(b, key_head), x.v.row, all.from, all.to, x.dv};
  const Queries<S> queries(x, work, b, h, i0, far_only);
  const Dropout<C> dropout(x);
  C zq[4][4] = {};
  for (int j0 = all.from / edge * edge; j0 < all.to; j0 += edge) {
    C p[4][4], za[4][4];
    score_gradients(p, za, s, x, queries, k, v, j0, dropout, true);
    put(s, za, true);
    multiply_tile(zq, s, k, j0, e0);
  }
  if (far_only) rotate_back(zq, s, ropes, i0, C(1));
  store<far_only>(x.z_q.at<S>(b, h), x.z_q.row, i0, x.L, e0, x.d, zq, static_cast<C>(x.scale));
}

template <class S>
__global__ void __launch_bounds__(threads, 1)
    key_gradients(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work) {
  const int chunks = chunks_of(max(x.d, x.dv));
  key_item<false, S>(x, work, key_position(x, blockIdx.x / chunks, edge), blockIdx.x % chunks * edge, {});
}

template <class S>
__global__ void __launch_bounds__(threads, 1)
    query_gradients(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work) {
  const int chunks = chunks_of(x.d);
  query_item<false, S>(x, work, query_position(x, blockIdx.x / chunks, edge), blockIdx.x % chunks * edge, {});
}

// Computes {c, log π} of query i by a warp. Products are added in the order of multiply().
template <class S>
__device__ void normalize_row(const AttentionCall& x, int b, int h, int i, RowBase<compute_t<S>>* to) {
  using C = compute_t<S>;
  const int lane = threadIdx.x % 32;
  const KeyRange keys = keys_visible_to(x, b, i);
  const Score<S> score(x, b, h);
  const S* const q = x.q.at<S>(b, h) + i64{i} * x.q.row;
  const S* const k = x.k.at<S>(b, h / (x.H / x.Hk));
  C top = -INFINITY, sum = 0;
  const auto add = [&](C a, C pi) {
    const C now = a > top ? a : top;
    if (now == -INFINITY) return;
    sum = sum * exp2((top - now) * static_cast<C>(log2_e)) + pi * exp2((a - now) * static_cast<C>(log2_e));
    top = now;
  };
  for (int j = keys.from + lane; j < keys.to; j += 32) {
    C s = 0, slope;
    for (int e = 0; e < x.d; ++e) s += widen(q[e]) * widen(k[i64{j} * x.k.row + e]);
    add(score.of(s, i, j, true, &slope), 1);
  }
  for (int by = 16; by > 0; by /= 2) {
    const C other = __shfl_xor_sync(~0u, top, by), pi = __shfl_xor_sync(~0u, sum, by);
    add(other, pi);
  }
  if (x.sink) add(widen(static_cast<const S*>(x.sink)[h]), 1);
  if (lane == 0) *to = sum == 0 ? RowBase<C>{0, INFINITY} : RowBase<C>{top, log(sum)};
}

// Computes the bases of far rows. A warp examines 32 groups of rows at a time.
template <class S>
__global__ void __launch_bounds__(threads)
    normalize(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work) {
  using C = compute_t<S>;
  begin_early();
  const int lane = threadIdx.x % 32, groups = Workspace::far_groups(x);
  const i64 all = i64{x.B} * x.H * groups, warps = i64{gridDim.x} * (threads / 32);
  for (i64 n0 = (i64{blockIdx.x} * (threads / 32) + threadIdx.x / 32) * 32; n0 < all; n0 += warps * 32)
#pragma unroll 1
    for (unsigned left = __ballot_sync(~0u, n0 + lane < all && work.far[n0 + lane] != 0); left != 0;
         left &= left - 1) {
      const i64 n = n0 + __ffs(static_cast<int>(left)) - 1, head = n / groups;
      const int first = static_cast<int>(n % groups) * 16;
#pragma unroll 1
      for (int i = first; i < min(first + 16, x.L); ++i) {
        const i64 row = head * x.L + i;
        if (is_far(x.type, static_cast<const C*>(x.lse)[row]))
          normalize_row<S>(x, static_cast<int>(head / x.H), static_cast<int>(head % x.H), i,
                           static_cast<RowBase<C>*>(work.bases) + row);
      }
    }
}

// Adds the gradients of far rows to the results of other kernels, whose z_Q is 0 in far rows. Blocks exit if
// no row is far. Otherwise they process items in round-robin order.
template <class S>
__global__ void __launch_bounds__(threads, 1)
    far_gradients(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work,
                  const __grid_constant__ Ropes ropes) {
  begin_early();
  const i64 all = i64{x.B} * x.H * Workspace::far_groups(x), words = all / 16;
  bool any = false;
  for (i64 n = threadIdx.x; n < words; n += threads) {
    const uint4 w = reinterpret_cast<const uint4*>(work.far)[n];
    any |= (w.x | w.y | w.z | w.w) != 0;
  }
  for (i64 n = words * 16 + threadIdx.x; n < all; n += threads) any |= work.far[n] != 0;
  if (!__syncthreads_or(any)) return;
  const int chunks = chunks_of(max(x.d, x.dv));
  const i64 of_keys = i64{x.B} * x.Hk * tiles_of(x.T) * chunks,
            of_queries = i64{x.B} * x.H * tiles_of(x.L) * chunks;
#pragma unroll 1
  for (i64 n = blockIdx.x; n < of_keys + of_queries; n += gridDim.x) {
    const int item = static_cast<int>((n < of_keys ? n : n - of_keys) / chunks),
              e0 = static_cast<int>(n % chunks) * edge;
    if (n < of_keys)
      key_item<true, S>(x, work, key_position(x, item, edge), e0, ropes);
    else if (e0 < x.d)
      query_item<true, S>(x, work, query_position(x, item, edge), e0, ropes);
    __syncthreads();
  }
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
    launch<C>(key_gradients<S>, s, x.B * x.Hk * tiles_of(x.T) * chunks_of(max(x.d, x.dv)), x, work);
    launch<C>(query_gradients<S>, s, x.B * x.H * tiles_of(x.L) * chunks_of(x.d), x, work);
  });
}

void launch_normalize(const Stream& s, const AttentionCall& x, const Workspace& work) {
  if (x.B * x.H * x.L == 0) return;
  with_float(x.type, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    launch_early(s, {static_cast<unsigned>(s.gpu.processors), plain::threads}, plain::normalize<S>, x, work);
  });
}

void launch_far_gradients(const Stream& s, const AttentionCall& x, const Workspace& work,
                          const Ropes& ropes) {
  if (x.B * x.H * x.L == 0) return;
  with_float(x.type, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    if constexpr (sizeof(S) <= 4)
      launch_early(s, {static_cast<unsigned>(s.gpu.processors), plain::threads, sizeof(plain::Shared<float>)},
                   plain::far_gradients<S>, x, work, ropes);
  });
}

}  // namespace tg::cuda::attention
