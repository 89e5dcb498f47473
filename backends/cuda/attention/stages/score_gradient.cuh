// The central step of the backward, shared by all kernels:
//
//   P = exp(A − ξ),  z_A = P ⊛ (keep ⊛ z_P − u)·slope
//
// A is computed from q·k (score.cuh), and z_P = z_O·Vᵀ. Tile rows are keys in some kernels and queries in
// others.
#pragma once

#include "backends/cuda/attention/stages/dropout.cuh"
#include "backends/cuda/attention/stages/schedule.cuh"
#include "backends/cuda/attention/stages/visible_keys.cuh"

namespace tg::cuda::attention {

// z_A of one element. With the slope of the softcap it is the gradient of scale·q·k. With slope 1 it is the
// gradient of the bias.
template <class C>
__device__ __forceinline__ C score_gradient(C p, C z_p, C keep, C u, C slope) {
  return p * (z_p * keep - u) * slope;
}

// Starts copying {ξ, u} of queries i0 … i0 + Queries − 1 of a head. Values beyond L are zeros. They give P =
// 1 and z_A = 0, but these multiply rows of zeros.
template <int Queries>
__device__ __forceinline__ void fetch_stats(float2* to, const AttentionCall& x, const Workspace& work, int b,
                                            int h, int i0) {
  if (threadIdx.x >= Queries) return;
  const int i = i0 + threadIdx.x;
  const float2* source = work.stats + (i64(b) * x.H + h) * x.L;
  ptx::cp_async_8(ptx::shared_address(to + threadIdx.x), i < x.L ? source + i : source, i < x.L ? 8 : 0);
}

// Loop bounds of a backward block: tiles first … last − 1 of the other side, and the rows of each side that
// are read. If the block keeps queries, the bounds also contain the keys that all of these queries see.
struct Traversal {
  int first, last;
  KeyRange kept, passing, every;
};
// Computes the bounds for `kept` rows of a head, starting at kept0. If these are queries, also fills `seen`
// and `stats`, with P = 0 beyond L.
template <bool by_query, int kept, int passing, int Queries>
__device__ __forceinline__ Traversal traversal(const AttentionCall& x, const Workspace& work, int b, int h,
                                               int kept0, VisibleKeys<Queries>& seen, float2* stats) {
  if constexpr (by_query) {
    for (int n = threadIdx.x, i = kept0 + n; n < kept; n += blockDim.x, i += blockDim.x)
      stats[n] = i < x.L ? work.stats[(i64(b) * x.H + h) * x.L + i] : float2{INFINITY, 0};
    const auto [some, every] = seen.set_and_unite(x, b, kept0);
    const Tiles tiles(some, passing);
    return {tiles.from, tiles.to, {0, x.L}, some, every};
  } else {
    constexpr int times = range_tile / passing;
    const int tiles = work.tiles(x);
    const Meeting met = tiles_that_meet(work.some + b * tiles, tiles, kept0, kept0 + kept);
    return {met.first * times,
            min(met.last * times, (x.L + passing - 1) / passing),
            met.keys,
            queries_of_sequences(x),
            {}};
  }
}

// Whether some query of the block, starting at i0, does not see all of the `keys` keys from j0. If so, fills
// `seen` for mask(). `every` contains the keys that all queries see. It is only valid if the block keeps
// queries.
template <bool by_query, int keys, int Queries>
__device__ __forceinline__ bool needs_mask(VisibleKeys<Queries>& seen, const AttentionCall& x,
                                           const Workspace& work, int b, int i0, int j0, KeyRange every) {
  if constexpr (by_query) return !covers(every, j0, keys);
  const bool masked = !covers(work.keys_of_all(x, b, i0), j0, keys);
  if (masked) {
    seen.set(x, b, i0);
    __syncthreads();
  }
  return masked;
}

// A thread's elements of the 16 × 8 score fragment at (row, column): elements 0 and 1 are in the first row,
// elements 2 and 3 eight rows below.
template <bool by_query>
struct Part {
  int row, column;
  __device__ int query(int e) const { return by_query ? row + e / 2 * 8 : column + e % 2; }
  __device__ int key(int e) const { return by_query ? column + e % 2 : row + e / 2 * 8; }
  __device__ static constexpr bool second_query(int e) { return by_query ? e / 2 : e % 2; }
};

// Powers of two by which P and z_A are scaled to fit f16.
struct HeldTimes {
  float p = 1, z_a = 1;
};

// Shared-memory layouts of ξ and u of the queries: interleaved pairs, or separate arrays. lse() and u()
// return the values of a fragment's two queries.
struct StatPairs {
  const float2* at;
  __device__ __forceinline__ float2 lse(auto part) const {
    return {at[part.query(0)].x, at[part.query(3)].x};
  }
  __device__ __forceinline__ float2 u(auto part) const { return {at[part.query(0)].y, at[part.query(3)].y}; }
};
struct StatRows {
  const float *lse_, *u_;  // 8-byte aligned
  __device__ __forceinline__ float2 lse(Part<false> part) const {
    return *reinterpret_cast<const float2*>(lse_ + part.column);
  }
  __device__ __forceinline__ float2 u(Part<false> part) const {
    return *reinterpret_cast<const float2*>(u_ + part.column);
  }
};
// StatRows with ξ of the first fragments already in registers.
template <int parts>
struct StatsAhead : StatRows {
  const float2 (&ahead)[parts];
  __device__ __forceinline__ float2 lse(Part<false> part) const {
    const int n = part.column / 8;
    return n < parts ? ahead[n] : StatRows::lse(part);
  }
};

// Score gradient of a tile of one head whose first query is i0 and first key is j0.
template <class S, Options options, bool by_query, class Stats = StatPairs>
struct ScoreGradient {
  using At = Part<by_query>;
  const AttentionCall& x;
  const Score<S>& score;
  const Dropout<float>& dropout;
  Stats stats;
  int batch_head, i0, j0;
  HeldTimes held = {};

  // Converts `a` of one fragment from q·k to P.
  __device__ __forceinline__ void probability(At at, float (&a)[4], float (&slope)[4]) const {
    const float2 lse = stats.lse(at);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = i0 + at.query(e), j = j0 + at.key(e);
      float s = a[e];
      slope[e] = 1;
      if constexpr (options == any) s = score.of(a[e], i, j, i < x.L && j < x.T, &slope[e]);
      a[e] =
          tile::exp2_fast(fmaf(s, score.template exponent<options>(), -(at.second_query(e) ? lse.y : lse.x)));
    }
  }
  // Converts one fragment: b from z_P to z_A, and a from P to P ⊛ keep.
  __device__ __forceinline__ void gradient(At at, float (&a)[4], float (&b)[4],
                                           const float (&slope)[4]) const {
    std::uint32_t words[4];
    if (drops<options>(x)) {
      if constexpr (by_query)
        row_words(dropout, batch_head, i0 + at.row, j0 + at.column - lane_column(), words);
      else
        column_words(dropout, batch_head, i0 + at.column, j0 + at.row - lane_row(), words);
    }
    const float2 u = options == none ? float2{} : stats.u(at);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if constexpr (options == none) {
        b[e] *= a[e] * held.z_a;
        a[e] *= held.p;
      } else {
        const float keep = drops<options>(x) ? dropout.factor(words[e]) : 1.f;
        b[e] = score_gradient(a[e] * held.z_a, b[e], keep, at.second_query(e) ? u.y : u.x, slope[e]);
        a[e] *= keep * held.p;
      }
  }
  // Converts p from q·k to P. Here and below, tiles start at (row0, column0).
  __device__ __forceinline__ void probabilities(auto& p, auto& slopes, int row0, int column0) const {
    tile::for_each_part(
        [&](int row, int column, float(&a)[4], float(&slope)[4]) {
          probability({row0 + row, column0 + column}, a, slope);
        },
        p, slopes);
  }
  // Converts z from z_P to z_A, and p from P to P ⊛ keep.
  __device__ __forceinline__ void gradients(auto& p, auto& z, auto& slopes, int row0, int column0) const {
    tile::for_each_part(
        [&](int row, int column, float(&a)[4], float(&b)[4], float(&slope)[4]) {
          gradient({row0 + row, column0 + column}, a, b, slope);
        },
        p, z, slopes);
  }
};

// Initializes the accumulator of z_P. If z_P needs no factor before u is subtracted, the initial value is −u,
// otherwise 0.
template <Options options, bool by_query>
__device__ __forceinline__ void begin(auto& z, const float2* stats, int row0, int column0) {
  const auto begin_part = [&](int row, int column, float(&b)[4]) {
    const Part<by_query> at{row0 + row, column0 + column};
#pragma unroll
    for (int e = 0; e < 4; ++e) b[e] = options == none ? -stats[at.query(e)].y : 0;
  };
  tile::for_each_part(begin_part, z);
}

}  // namespace tg::cuda::attention
