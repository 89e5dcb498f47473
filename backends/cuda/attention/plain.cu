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

// Reduces x by f over the 16 threads that share a row.
template <class C, class F>
__device__ C reduce_row(C x, F&& f) {
  for (int step = 8; step > 0; step /= 2) x = f(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// The online softmax of the thread's rows.
template <class C>
struct Softmax {
  C top[4], sum[4];  // c in units of log 2, and π

  // The sink is a first key with value 0; −∞: none.
  __device__ explicit Softmax(C sink) {
    for (int r = 0; r < 4; ++r) {
      top[r] = sink * static_cast<C>(log2_e);
      sum[r] = top[r] > C(-INFINITY) ? 1 : 0;
    }
  }
  // c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum, G ← exp(c_old − c)·G; A becomes exp(A − c).
  __device__ void step(Tile<C>& a, Tile<C>& g) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      C most = C(-INFINITY), added = 0;
      for (const C e : a.x[r]) most = max(most, e);
      most = max(reduce_row(most, [](C m, C n) { return max(m, n); }), top[r]);
      const C base = most == C(-INFINITY) ? C(0) : most, shrink = exp2(top[r] - base);
      for (C& e : a.x[r]) added += e = exp2(e - base);
      top[r] = most;
      sum[r] = sum[r] * shrink + reduce_row(added, [](C m, C n) { return m + n; });
      for (C& e : g.x[r]) e *= shrink;
    }
  }
  // O = G ⊘ π, ξ = c + log π, of queries from i0 on.
  __device__ void finish(Tile<C>& g, C* lse, int i0, int L) const {
    for (int r = 0; r < 4; ++r) {
      const int i = i0 + g.row(r);
      if (g.column(0) == 0 && i < L)
        lse[i] = sum[r] == 0 ? C(-INFINITY) : top[r] * static_cast<C>(ln_2) + log(sum[r]);
      const C inverse = sum[r] == 0 ? C(0) : 1 / sum[r];
      for (C& e : g.x[r]) e *= inverse;
    }
  }
};

// A block for 64 queries and 64 columns of O.
template <class S>
__global__ void __launch_bounds__(threads, sizeof(S) == 4 ? 2 : 1)
    forward(const __grid_constant__ AttentionCall x) {
  using C = compute_t<S>;
  Shared<C>& s = shared_memory<C>();
  const int chunks = chunks_of(x.dv), e0 = blockIdx.x % chunks * edge;
  const auto [bh, b, h, i0] = query_place(x, blockIdx.x / chunks, edge);
  s.seen.set(x, b, i0);
  __syncthreads();
  KeyRange keys, every;
  s.seen.unite(edge, keys, every);
  const Head<S> head(x, b, h, keys);
  const Dropout<C> dropout(x);
  Softmax<C> softmax(x.sink ? widen(static_cast<const S*>(x.sink)[h]) : C(-INFINITY));
  Tile<C> g{};
  for (int j0 = keys.from / edge * edge; j0 < keys.to; j0 += edge) {
    Tile<C> a = product_ABt(s, head.q, i0, head.k, j0);
    a.for_each([&](int r, int c, C& e) {
      const int i = a.row(r), j = j0 + a.column(c);
      C slope;
      e = s.sees(i, j) ? head.score.of(e, i0 + i, j, true, &slope) : C(-INFINITY);
    });
    softmax.step(a, g);
    PhiloxBlock words;
    if (x.dropout > 0)
      a.for_each([&](int r, int c, C& e) {
        if (c == 0) words = philox(attention_counter(bh, i0 + a.row(r), j0 + a.column(c)), dropout.key);
        e *= dropout.factor(words[c]);
      });
    add_product<false>(g, s, a, head.v, j0, e0);
  }
  softmax.finish(g, static_cast<C*>(x.lse) + i64(bh) * x.L, i0, e0 == 0 ? x.L : 0);
  store<S>(g, x.o, b, h, i0, x.L, e0, x.dv);
}

// z_V = Σ (P ⊛ keep)ᵀ·z_O, z_K = Σ z_Aᵀ·q·scale over the queries of the group's heads, in order. A block for
// 64 keys and 64 columns of each.
template <class S>
__global__ void __launch_bounds__(threads, 1)
    key_gradients(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work) {
  using C = compute_t<S>;
  Shared<C>& s = shared_memory<C>();
  const int chunks = chunks_of(max(x.d, x.dv)), e0 = blockIdx.x % chunks * edge, group = x.H / x.Hk;
  const auto [bk, b, key_head, j0] = key_place(x, blockIdx.x / chunks, edge);
  Tile<C> zk{}, zv{};
  for_each_gradient<S>(x, work, true, {b, b + 1}, {key_head * group, (key_head + 1) * group}, {0, x.L},
                       {j0, j0 + edge}, [&](Tile<C>& p, Tile<C>& za, const Head<S>& head, int i0, int) {
                         if (e0 < x.dv) add_product<true>(zv, s, p, head.z, i0, e0);
                         if (e0 < x.d) add_product<true>(zk, s, za, head.q, i0, e0);
                       });
  store<S>(zk, x.z_k, b, key_head, j0, x.T, e0, x.d, static_cast<C>(x.scale));
  store<S>(zv, x.z_v, b, key_head, j0, x.T, e0, x.dv);
}

// z_Q = z_A·K·scale. A block for 64 queries and 64 columns.
template <class S>
__global__ void __launch_bounds__(threads, 1)
    query_gradients(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work) {
  using C = compute_t<S>;
  Shared<C>& s = shared_memory<C>();
  const int chunks = chunks_of(x.d), e0 = blockIdx.x % chunks * edge;
  const auto [bh, b, h, i0] = query_place(x, blockIdx.x / chunks, edge);
  Tile<C> zq{};
  for_each_gradient<S>(x, work, true, {b, b + 1}, {h, h + 1}, {i0, i0 + edge}, {0, x.T},
                       [&](Tile<C>&, Tile<C>& za, const Head<S>& head, int, int j0) {
                         add_product<false>(zq, s, za, head.k, j0, e0);
                       });
  store<S>(zq, x.z_q, b, h, i0, x.L, e0, x.d, static_cast<C>(x.scale));
}

}  // namespace plain

void launch_plain_forward(const Stream& s, const AttentionCall& x, const Workspace&, const Powers*) {
  using namespace plain;
  with_float(x.type, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    launch<compute_t<S>>(forward<S>, s, x.B * x.H * tiles_of(x.L) * chunks_of(x.dv), x);
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

}  // namespace tg::cuda::attention
