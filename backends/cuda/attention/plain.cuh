// Tiles of attention in plain multiply-adds: the 256 threads of a block hold a tile of 64 × 64 numbers, 4 × 4
// each, and accumulate products of tiles, which are copied to shared memory in slices.
#pragma once

#include "backends/cuda/attention/schedule.cuh"
#include "backends/cuda/attention/score_gradient.cuh"

namespace tg::cuda::attention::plain {

constexpr int edge = range_tile;  // rows and columns of a tile
constexpr int depth = 32;         // of a slice
constexpr int pitch = 68;         // elements from row to row in shared memory
constexpr int threads = 256;

constexpr int tiles_of(int n) {
  return (n + edge - 1) / edge;
}

template <class C>
using Slice = C[depth][pitch];

template <class C>
struct Shared {
  alignas(16) Slice<C> left, right;
  alignas(16) C p[edge][pitch];
  // Of the block's queries; ξ in units of log 2, +∞ where P is 0.
  SeenKeys<edge> seen;
  C lse[edge], u[edge];

  __device__ bool sees(int i, int j) const { return j >= seen.first[i] && j < seen.last[i]; }
};

template <class C>
__device__ Shared<C>& shared_memory() {
  TG_DYNAMIC_SHARED(bytes, 16);
  return *reinterpret_cast<Shared<C>*>(bytes);
}

// Launches a kernel with the shared memory it needs.
template <class C, class... A>
void launch(void (*kernel)(A...), const Stream& s, i64 blocks, const std::type_identity_t<A>&... args) {
  if (blocks == 0) return;
  launch_kernel(s, {blocks_for(blocks, 1), threads, sizeof(Shared<C>)}, kernel, args...);
}

// The thread's 4 × 4 numbers of a tile, and where in the tile they are.
template <class C>
struct Tile {
  C x[4][4];
  static __device__ int row(int r) { return threadIdx.x / 16 * 4 + r; }
  static __device__ int column(int c) { return threadIdx.x % 16 * 4 + c; }

  template <class F>
  __device__ void for_each(F&& f) {  // f(r, c, element)
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) f(r, c, x[r][c]);
  }
};

// Rows of an operand [rows, size]. Invalid rows read as zeros; their memory may hold anything.
template <class S>
struct Rows {
  const S* data;
  i64 stride;
  KeyRange valid;
  int size;

  // to[r][e] = row r0 + r, column e0 + e of a slice of 32 rows; or to[e][r], of 32 columns.
  template <bool transposed, class C>
  __device__ void load(Slice<C>& to, int r0, int e0) const {
    constexpr int columns = transposed ? depth : edge;
    for (int n = threadIdx.x; n < depth * edge; n += threads) {
      const int r = n / columns, e = n % columns, i = r0 + r, j = e0 + e;
      const bool is_valid = i >= valid.from && i < valid.to && j < size;
      (transposed ? to[e][r] : to[r][e]) = is_valid ? widen(data[i * stride + j]) : C(0);
    }
  }
};

// Operands of a query head, with some keys.
template <class S>
struct Head {
  Rows<S> q, z, k, v;
  Score<S> score;

  // Queries that attend nothing lie before and after all sequences, or hold finite numbers.
  __device__ Head(const AttentionCall& x, int b, int h, KeyRange keys) : score(x, b, h) {
    const KeyRange queries = queries_of_sequences(x);
    const int key_head = h / (x.H / x.Hk);
    q = {x.q.at<S>(b, h), x.q.row, queries, x.d};
    z = {x.z_o.at<S>(b, h), x.z_o.row, queries, x.dv};
    k = {x.k.at<S>(b, key_head), x.k.row, keys, x.d};
    v = {x.v.at<S>(b, key_head), x.v.row, keys, x.dv};
  }
};

// x += leftᵀ·right of two slices.
template <class C>
__device__ void add_product(Tile<C>& x, const C (*left)[pitch], const Slice<C>& right) {
  struct alignas(16) Four {
    C at[4];
  };
#pragma unroll 4
  for (int k = 0; k < depth; ++k) {
    const Four a = *reinterpret_cast<const Four*>(&left[k][x.row(0)]),
               b = *reinterpret_cast<const Four*>(&right[k][x.column(0)]);
    x.for_each([&](int r, int c, C& e) { e += a.at[r] * b.at[c]; });
  }
}

// A·Bᵀ of rows of A from i0 and of B from j0 on.
template <class S, class C>
__device__ Tile<C> product_ABt(Shared<C>& s, const Rows<S>& A, int i0, const Rows<S>& B, int j0) {
  Tile<C> x{};
  for (int e0 = 0; e0 < A.size; e0 += depth) {
    __syncthreads();
    A.template load<true>(s.left, i0, e0);
    B.template load<true>(s.right, j0, e0);
    __syncthreads();
    add_product(x, s.left, s.right);
  }
  return x;
}

// s.p = a, or its transpose.
template <bool transposed, class C>
__device__ void put(Shared<C>& s, Tile<C>& a) {
  __syncthreads();
  a.for_each([&](int r, int c, C& e) {
    const int i = a.row(r), j = a.column(c);
    (transposed ? s.p[j][i] : s.p[i][j]) = e;
  });
}

// x += a·B, or aᵀ·B, of rows of B from r0 and its columns from e0 on.
template <bool transposed, class S, class C>
__device__ void add_product(Tile<C>& x, Shared<C>& s, Tile<C>& a, const Rows<S>& B, int r0, int e0) {
  put<!transposed>(s, a);
  for (int k = 0; k < edge; k += depth) {
    __syncthreads();
    B.template load<false>(s.right, r0 + k, e0);
    __syncthreads();
    add_product(x, s.p + k, s.right);
  }
}

// Rows from r0 and columns from e0 on of a head [rows, size] = x·factor.
template <class S, class C>
__device__ void store(Tile<C>& x, const AttentionCall::Operand& to, int b, int h, int r0, int rows, int e0,
                      int size, C factor = 1) {
  S* data = to.at<S>(b, h);
  x.for_each([&](int r, int c, C& e) {
    const int i = r0 + x.row(r), j = e0 + x.column(c);
    if (i < rows && j < size) data[i * to.row + j] = narrow<S>(e * factor);
  });
}

// ξ and u of the thread's one of 64 queries from i0 on: read while the first product is computed, then stored
// for all threads, with the keys that the query sees. f64 has no registers to spare and reads them
// afterwards.
template <class C>
struct Stats {
  static constexpr bool early = sizeof(C) == 4;
  C lse, u;

  __device__ void read(const AttentionCall& x, const Workspace& work, int b, int h, int i0) {
    const int i = i0 + threadIdx.x;
    const bool is_valid = threadIdx.x < edge && i < x.L;
    const i64 at = (i64(b) * x.H + h) * x.L + i;
    lse = is_valid ? static_cast<const C*>(x.lse)[at] : C(-INFINITY);
    u = is_valid ? static_cast<const C*>(work.u)[at] : C(0);
  }
  __device__ void put(Shared<C>& s, const AttentionCall& x, int b, int i0) const {
    const int n = threadIdx.x;
    __syncthreads();  // the previous tile's have been read
    s.seen.set(x, b, i0);
    if (n < edge) s.lse[n] = lse == C(-INFINITY) ? C(INFINITY) : lse * static_cast<C>(log2_e), s.u[n] = u;
    __syncthreads();
  }
};

// Part of an axis.
struct Span {
  int from, to;
};

// f(p, za, head, i0, j0) for tiles of scores of queries from i0 and keys from j0 on, in order, with
// p = P ⊛ keep and za = z_A = P ⊛ (keep ⊛ z_O·Vᵀ − u). `before_cap`: z_A times the slope of the cap, which
// makes it the gradient of scale·q·k. Spans of keys begin with a tile.
template <class S, class F>
__device__ void for_each_gradient(const AttentionCall& x, const Workspace& work, bool before_cap, Span batch,
                                  Span heads, Span queries, Span keys, F&& f) {
  using C = compute_t<S>;
  Shared<C>& s = shared_memory<C>();
  const Dropout<C> dropout(x);
  for (int b = batch.from; b < batch.to; ++b)
    for (int h = heads.from; h < heads.to; ++h)
      for (int i0 = queries.from; i0 < queries.to; i0 += edge) {
        const int2 seen = work.some[b * work.tiles(x) + i0 / edge];
        const int first = max(keys.from, seen.x / edge * edge), last = min(keys.to, seen.y);
        if (first >= last) continue;
        const Head<S> head(x, b, h, {seen.x, seen.y});
        Stats<C> stats;
        if (stats.early) stats.read(x, work, b, h, i0);
        for (int j0 = first; j0 < last; j0 += edge) {
          Tile<C> p = product_ABt(s, head.q, i0, head.k, j0);
          if (!stats.early && j0 == first) stats.read(x, work, b, h, i0);
          if (j0 == first) stats.put(s, x, b, i0);
          Tile<C> za = product_ABt(s, head.z, i0, head.v, j0);
          PhiloxBlock words{};
          p.for_each([&](int r, int c, C& e) {
            const int i = p.row(r), j = j0 + p.column(c);
            const bool sees = s.sees(i, j);
            C slope = 1, &z = za.x[r][c];
            e = sees ? exp2(head.score.of(e, i0 + i, j, true, &slope) - s.lse[i]) : C(0);
            if (c == 0 && x.dropout > 0)
              words = philox(attention_counter(b * x.H + h, i0 + i, j), dropout.key);
            const C keep = x.dropout > 0 ? dropout.factor(words[c]) : C(1);
            z = sees ? score_gradient(e, z, keep, s.u[i], before_cap ? slope : C(1)) : C(0);
            e *= keep;
          });
          f(p, za, head, i0, j0);
        }
      }
}

}  // namespace tg::cuda::attention::plain
