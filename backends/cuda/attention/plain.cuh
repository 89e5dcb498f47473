// Attention tiles with plain multiply-adds. The 256 threads of a block have a tile of 64 × 64 elements, 4 × 4
// each. They accumulate products of tiles, which are copied to shared memory in slices.
#pragma once

#include "backends/cuda/attention/stages/far_rows.cuh"
#include "backends/cuda/attention/stages/schedule.cuh"
#include "backends/cuda/attention/stages/score_gradient.cuh"

namespace tg::cuda::attention::plain {

constexpr int edge = range_tile;  // rows and columns of a tile
constexpr int depth = 32;         // rows of a slice
constexpr int pitch = 68;         // elements between rows in shared memory
constexpr int threads = 256;

constexpr int tiles_of(int n) {
  return (n + edge - 1) / edge;
}

template <class C>
struct Shared {
  alignas(16) C left[depth][pitch], right[depth][pitch], p[edge][pitch];
};

template <class C>
__device__ Shared<C>& shared_memory() {
  TG_DYNAMIC_SHARED(bytes, 16);
  return *reinterpret_cast<Shared<C>*>(bytes);
}

// Launches a kernel with the required shared memory.
template <class C, class... A>
void launch(void (*kernel)(A...), const Stream& s, i64 blocks, const std::type_identity_t<A>&... args) {
  if (blocks == 0) return;
  launch_kernel(s, {blocks_for(blocks, 1), threads, sizeof(Shared<C>)}, kernel, args...);
}

// Position of a thread's 4 × 4 elements in the tile.
struct Own {
  int i, j;
  __device__ Own() : i(threadIdx.x / 16 * 4), j(threadIdx.x % 16 * 4) {}
};

// x[pitch][column] += Σ_k left[k][pitch]·right[k][column].
template <class C>
__device__ void multiply(C (&x)[4][4], const C (*left)[pitch], const C (*right)[pitch], int slices) {
  struct alignas(16) Four {
    C at[4];
  };
  const Own p;
#pragma unroll 4
  for (int k = 0; k < slices; ++k) {
    const Four a = *reinterpret_cast<const Four*>(&left[k][p.i]),
               b = *reinterpret_cast<const Four*>(&right[k][p.j]);
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) x[r][c] += a.at[r] * b.at[c];
  }
}

// Rows [from, to) of an operand [rows, size]. Other rows read as zeros, because their memory may contain
// anything.
template <class S>
struct Rows {
  const S* data;
  i64 stride;
  int from, to, size;
  __device__ compute_t<S> at(int r, int e) const {
    return r >= from && r < to && e < size ? widen(data[r * stride + e]) : compute_t<S>(0);
  }
  // K or V of a key head.
  static __device__ Rows of_head(const AttentionCall& x, const AttentionCall::TensorView& a, int b, int head,
                                 KeyRange keys, int size) {
    return {a.at<S>(b, head), a.row, keys.from, keys.to, size};
  }
};

// Rows of a sequence's keys or values in a paged cache.
template <class S>
struct PagedRows {
  const S* data;
  const int* table;  // of the sequence
  int page, pool;
  i64 page_stride, stride;
  int from, to, size;
  __device__ compute_t<S> at(int r, int e) const {
    if (r < from || r >= to || e >= size) return 0;
    const int number = table[r / page];
    if (number < 0 || number >= pool) return 0;  // the fault is reported elsewhere
    return widen(data[number * page_stride + r % page * stride + e]);
  }
  static __device__ PagedRows of_head(const AttentionCall& x, const AttentionCall::TensorView& a, int b,
                                      int head, KeyRange keys, int size) {
    const int* const table = x.table + i64(b) * x.pages;
    return {a.at<S>(0, head), table, x.page, x.pool, a.batch, a.row, keys.from, keys.to, size};
  }
};

// to[e][r] = rows[r0 + r][e0 + e]
template <class R, class C>
__device__ void load_transposed(C (*to)[pitch], const R& rows, int r0, int e0) {
  for (int n = threadIdx.x; n < depth * edge; n += threads)
    to[n % depth][n / depth] = rows.at(r0 + n / depth, e0 + n % depth);
}
// to[r][e] = rows[r0 + r][e0 + e]
template <class R, class C>
__device__ void load(C (*to)[pitch], const R& rows, int r0, int e0) {
  for (int n = threadIdx.x; n < depth * edge; n += threads)
    to[n / edge][n % edge] = rows.at(r0 + n / edge, e0 + n % edge);
}

// x = left[i0 + i]·right[j0 + j], dot products of rows.
template <class L, class R, class C>
__device__ void multiply_rows(C (&x)[4][4], Shared<C>& s, const L& left, int i0, const R& right, int j0) {
  for (auto& r : x)
    for (C& e : r) e = 0;
  for (int e0 = 0; e0 < left.size; e0 += depth) {
    __syncthreads();
    load_transposed(s.left, left, i0, e0);
    load_transposed(s.right, right, j0, e0);
    __syncthreads();
    multiply(x, s.left, s.right, depth);
  }
}

// x[r][c] += Σ_k p[k][r]·rows[r0 + k][e0 + c], k < 64, with p in shared memory.
template <class R, class C>
__device__ void multiply_tile(C (&x)[4][4], Shared<C>& s, const R& rows, int r0, int e0) {
  for (int k = 0; k < edge; k += depth) {
    __syncthreads();
    load(s.right, rows, r0 + k, e0);
    __syncthreads();
    multiply(x, s.p + k, s.right, depth);
  }
}

// s.p[r][c] = x, or its transpose.
template <class C>
__device__ void put(Shared<C>& s, const C (&x)[4][4], bool transposed) {
  const Own p;
  __syncthreads();
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) (transposed ? s.p[p.j + c][p.i + r] : s.p[p.i + r][p.j + c]) = x[r][c];
}

// rows[r0 + r][e0 + c] = x·factor, or += if `adds`.
template <bool adds = false, class S, class C>
__device__ void store(S* data, i64 stride, int r0, int rows, int e0, int columns, const C (&x)[4][4],
                      C factor) {
  const Own p;
  for (int r = 0; r < 4 && r0 + p.i + r < rows; ++r)
    for (int c = 0; c < 4 && e0 + p.j + c < columns; ++c) {
      S& to = data[(r0 + p.i + r) * stride + e0 + p.j + c];
      to = narrow<S>(adds ? widen(to) + x[r][c] * factor : x[r][c] * factor);
    }
}

// 64 queries of one head, starting at i0. For each of the thread's four queries: visible keys, base and u.
template <class S>
struct Queries {
  using C = compute_t<S>;
  int b, h, i0;
  KeyRange keys[4];
  const RowBase<C>* bases;  // bases, starting at the first of the four queries
  unsigned counts = 0;      // bit r: P of query r may be nonzero
  C u[4];
  Rows<S> q, z;

  // far_only: P is 0 except in far rows.
  __device__ Queries(const AttentionCall& x, const Workspace& work, int b, int h, int i0,
                     bool far_only = false)
      : b(b), h(h), i0(i0) {
    const Own p;
    for (int r = 0; r < 4; ++r) {
      const int i = i0 + p.i + r;
      keys[r] = keys_visible_to(x, b, i);
      const i64 at = (i64(b) * x.H + h) * x.L + i;
      const bool some = i < x.L && (!far_only || is_far(x.type, static_cast<const C*>(x.lse)[at]));
      if (r == 0) bases = static_cast<const RowBase<C>*>(work.bases) + at;
      counts |= unsigned{some} << r;
      u[r] = some ? static_cast<const C*>(work.u)[at] : C(0);
    }
    // Queries without visible keys are outside of all sequences, or have finite values.
    const KeyRange any = queries_of_sequences(x);
    q = {x.q.at<S>(b, h), x.q.row, any.from, any.to, x.d};
    z = {x.z_o.at<S>(b, h), x.z_o.row, q.from, q.to, x.dv};
  }
};

// Computes P ⊛ keep and z_A = P ⊛ (keep ⊛ z_O·Vᵀ − u) for a tile of queries and the keys from j0 (a multiple
// of 64). `before_cap` multiplies z_A by the slope of the softcap. z_A is then the gradient of scale·q·k.
template <class S, class C>
__device__ void score_gradients(C (&p)[4][4], C (&za)[4][4], Shared<C>& s, const AttentionCall& x,
                                const Queries<S>& n, const Rows<S>& k, const Rows<S>& v, int j0,
                                const Dropout<C>& dropout, bool before_cap) {
  const Own at;
  const Score<S> score(x, n.b, n.h);
  multiply_rows(p, s, n.q, n.i0, k, j0);
  multiply_rows(za, s, n.z, n.i0, v, j0);
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int i = n.i0 + at.i + r;
    const RowBase<C> base = n.counts >> r & 1 ? n.bases[r] : RowBase<C>{0, INFINITY};
    Words words{};
    if (x.dropout > 0) words = dropout.words(n.b * x.H + n.h, i, j0 + at.j);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int j = j0 + at.j + c;
      C slope = 1;
      const bool sees = j >= n.keys[r].from && j < n.keys[r].to;
      const C e = sees ? exp2((score.of(p[r][c], i, j, true, &slope) - base.shift - base.offset) *
                              static_cast<C>(log2_e))
                       : C(0);
      const C keep = x.dropout > 0 ? dropout.factor(words[c]) : C(1);
      za[r][c] = sees ? score_gradient(e, za[r][c], keep, n.u[r], before_cap ? slope : C(1)) : C(0);
      p[r][c] = e * keep;
    }
  }
}

}  // namespace tg::cuda::attention::plain
