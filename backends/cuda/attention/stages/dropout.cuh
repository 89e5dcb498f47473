// Dropout factors of P from Philox words (core/base/rng.h), indexed by query and key. They are equal on all
// backends.
#pragma once

#include "backends/cuda/attention/stages/score.cuh"

namespace tg::cuda::attention {

// Philox with its words in registers. The std::array of core/base/rng.h caused register spills.
struct Words {
  std::uint32_t x, y, z, w;
  __device__ std::uint32_t operator[](int i) const { return i < 2 ? i == 0 ? x : y : i == 2 ? z : w; }
};
__device__ inline Words philox_words(Words c, std::uint64_t key) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < philox_rounds; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c.x, p1 = std::uint64_t{0xCD9E8D57u} * c.z;
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c.y ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c.w ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}
static_assert(philox_multiplier[0] == 0xD2511F53u && philox_multiplier[1] == 0xCD9E8D57u &&
              philox_increment[0] == 0x9E3779B9u && philox_increment[1] == 0xBB67AE85u);

// Dropout factors of a call: 0 or 1/(1 − p) for each score.
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
  // The words of the four keys starting at `four`, a multiple of 4 (attention_counter).
  __device__ Words words(int batch_head, int query, int four) const {
    return philox_words({static_cast<std::uint32_t>(query), static_cast<std::uint32_t>(four) / 4,
                         static_cast<std::uint32_t>(batch_head), 0},
                        key);
  }
  __device__ C factor(std::uint32_t word) const { return word >= bound ? kept : C(0); }
};

// Words for a thread's four elements of a fragment of 16 queries (rows) × 8 keys: elements 0 and 1 belong to
// query i, elements 2 and 3 to query i + 8. Their keys are j and j + 1 with j = key0 + 2t. Two neighboring
// lanes need the same two Philox blocks of four keys, one per query. Each of the two lanes computes one
// block, and then they exchange halves.
__device__ inline void row_words(const Dropout<float>& d, int batch_head, int i, int key0,
                                 std::uint32_t (&w)[4]) {
  const int t = threadIdx.x % 4;
  const bool odd = t % 2;
  const Words own = d.words(batch_head, odd ? i + 8 : i, key0 + t / 2 * 4);
  const std::uint32_t a = __shfl_xor_sync(~0u, odd ? own.x : own.z, 1),
                      b = __shfl_xor_sync(~0u, odd ? own.y : own.w, 1);
  w[0] = odd ? a : own.x, w[1] = odd ? b : own.y;
  w[2] = odd ? own.z : a, w[3] = odd ? own.w : b;
}
// Words for a thread's four elements of a fragment of 16 keys (rows) × 8 queries: elements 0 and 1 belong to
// key j = key0 + g, elements 2 and 3 to key j + 8. Their queries are i and i + 1. Four lanes share four
// Philox blocks, and each lane computes one of them.
__device__ inline void column_words(const Dropout<float>& d, int batch_head, int i, int key0,
                                    std::uint32_t (&w)[4]) {
  const int g = threadIdx.x % 32 / 4, me = g % 4;
  const Words own = d.words(batch_head, i + me % 2, key0 + g / 4 * 4 + me / 2 * 8);
  std::uint32_t got[4];
  got[0] = own[me];
#pragma unroll
  for (int r = 1; r < 4; ++r) got[r] = __shfl_xor_sync(~0u, own[me ^ r], 4 * r);
#pragma unroll
  for (int e = 0; e < 4; ++e) {  // element e was computed by lane e of the four
    const int r = e ^ me;
    w[e] = r < 2 ? r == 0 ? got[0] : got[1] : r == 2 ? got[2] : got[3];
  }
}

// p ← p ⊛ keep for a tile that starts at query i0 and key j0.
__device__ __forceinline__ void drop(auto& p, const Dropout<float>& dropout, int batch_head, int i0, int j0) {
  const auto drop_part = [&](int row, int column, float(&e)[4]) {
    std::uint32_t w[4];
    row_words(dropout, batch_head, i0 + row, j0 + column - tile::lane_column(), w);
#pragma unroll
    for (int n = 0; n < 4; ++n) e[n] *= dropout.factor(w[n]);
  };
  tile::for_each_part(drop_part, p);
}

}  // namespace tg::cuda::attention
