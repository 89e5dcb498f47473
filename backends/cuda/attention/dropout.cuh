// The dropout mask D of P: words of Philox (core/rng.h) by query and key, the same on every backend.
#pragma once

#include "backends/cuda/attention/score.cuh"

namespace tg::cuda::attention {

// words[i] by selection: an index that is not a constant would put the array into local memory.
__device__ inline std::uint32_t select(const PhiloxBlock& words, int i) {
  return i < 2 ? i == 0 ? words[0] : words[1] : i == 2 ? words[2] : words[3];
}

// Dropout factors 0 or 1/(1 − p) of the scores of one call.
template <class C>
struct Dropout {
  std::uint64_t key = 0;
  std::uint32_t bound;
  C kept = 1;

  __device__ explicit Dropout(const AttentionCall& x) : bound(x.dropout_bound) {
    if (x.dropout <= 0) return;
    key = node_key(x.rng[0], x.rng[x.rng_stride], static_cast<std::uint32_t>(x.stream));
    kept = static_cast<C>(1 / (1 - x.dropout));
  }
  // Those of the four keys from `four`, a multiple of 4.
  __device__ PhiloxBlock words(int batch_head, int query, int four) const {
    return philox(attention_counter(batch_head, query, four), key);
  }
  __device__ C factor(std::uint32_t word) const { return word >= bound ? kept : C(0); }
};

// Words for a thread's four elements of a part of 16 queries (rows) × 8 keys: elements 0, 1 of query i and 2,
// 3 of query i + 8, keys j and j + 1 with j = key0 + 2t. Neighbours need one block of four keys for each
// query: each makes one and they swap halves.
__device__ inline void row_words(const Dropout<float>& d, int batch_head, int i, int key0,
                                 std::uint32_t (&w)[4]) {
  const int t = threadIdx.x % 4;
  const bool odd = t % 2;
  const PhiloxBlock own = d.words(batch_head, odd ? i + 8 : i, key0 + t / 2 * 4);
  const std::uint32_t a = __shfl_xor_sync(~0u, odd ? own[0] : own[2], 1),
                      b = __shfl_xor_sync(~0u, odd ? own[1] : own[3], 1);
  w[0] = odd ? a : own[0], w[1] = odd ? b : own[1];
  w[2] = odd ? own[2] : a, w[3] = odd ? own[3] : b;
}
// The same of a part of 16 keys (rows) × 8 queries: elements 0, 1 of key j = key0 + g and 2, 3 of key j + 8,
// queries i and i + 1. The four lanes of a block of four keys need four blocks: each makes one.
__device__ inline void column_words(const Dropout<float>& d, int batch_head, int i, int key0,
                                    std::uint32_t (&w)[4]) {
  const int g = threadIdx.x % 32 / 4, me = g % 4;
  const PhiloxBlock own = d.words(batch_head, i + me % 2, key0 + g / 4 * 4 + me / 2 * 8);
  PhiloxBlock got;
  got[0] = select(own, me);
#pragma unroll
  for (int r = 1; r < 4; ++r) got[r] = __shfl_xor_sync(~0u, select(own, me ^ r), 4 * r);
#pragma unroll
  for (int e = 0; e < 4; ++e) w[e] = select(got, e ^ me);  // from the lane whose number is e
}

// P ⊛ keep of queries from i0 and keys from j0 on.
template <int Rows, int Columns>
__device__ __forceinline__ void drop(tile::Accumulator<Rows, Columns>& p, const Dropout<float>& dropout,
                                     int batch_head, int i0, int j0) {
  tile::for_each_part(p, [&](int row, int column, float(&e)[4]) {
    std::uint32_t w[4];
    row_words(dropout, batch_head, i0 + row, j0 + column - tile::lane_column(), w);
#pragma unroll
    for (int n = 0; n < 4; ++n) e[n] *= dropout.factor(w[n]);
  });
}

}  // namespace tg::cuda::attention
