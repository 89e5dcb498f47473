// What the tensor core kernels of attention share: options applied to tiles of scores in registers.
#pragma once

#include "backends/cuda/attention/attention.cuh"
#include "backends/cuda/tile/mma_sm80.cuh"

namespace tg::cuda {

namespace attn {

// The compiled head size for d and dv, both padded to it.
inline int padded_size(const Attention& x) {
  const int most = x.d > x.dv ? x.d : x.dv;
  return most <= 32 ? 32 : most <= 64 ? 64 : most <= 96 ? 96 : 128;
}
// What a kernel does to scores beyond a mask and a positive factor.
enum Options { none, only_dropout, any };

// Calls f with the options as a constant.
template <class F>
void with_options(const Attention& x, F&& f) {
  if (x.softcap != 0 || x.bias.data || x.scale <= 0)
    f(std::integral_constant<Options, any>());
  else if (x.dropout > 0)
    f(std::integral_constant<Options, only_dropout>());
  else
    f(std::integral_constant<Options, none>());
}

// Calls f with the storage type, the head size and the options as constants.
template <class F>
void with_variant(const Attention& x, F&& f) {
  const auto sized = [&](auto type, auto options) {
    switch (padded_size(x)) {
      case 32:
        return f(type, std::integral_constant<int, 32>(), options);
      case 64:
        return f(type, std::integral_constant<int, 64>(), options);
      case 96:
        return f(type, std::integral_constant<int, 96>(), options);
      default:
        return f(type, std::integral_constant<int, 128>(), options);
    }
  };
  const auto typed = [&](auto type) { with_options(x, [&](auto options) { sized(type, options); }); };
  x.type == DType::bf16 ? typed(__nv_bfloat16()) : typed(__half());
}

// Keys of each of the block's queries, and of all together.
template <int Queries>
struct Keys {
  int first[Queries], last[Queries];

  __device__ void set(const Attention& x, int b, int i0) {
    for (int n = threadIdx.x; n < Queries; n += blockDim.x) {
      const KeyRange r = keys_of_query(x, b, i0 + n);
      first[n] = r.from, last[n] = r.to;
    }
  }
  // Keys that some query attends, and those that every query below L attends; by any warp, after a barrier.
  __device__ void unite(int queries, KeyRange& some, KeyRange& every) const {
    int low = INT_MAX, high = 0, most = 0, least = INT_MAX;
    for (int n = tiles::lane_id(); n < queries; n += 32) {
      if (first[n] < last[n]) low = min(low, first[n]);
      high = max(high, last[n]);
      most = max(most, first[n]), least = min(least, last[n]);
    }
    low = __reduce_min_sync(~0u, low), high = __reduce_max_sync(~0u, high);
    some = low < high ? KeyRange{low, high} : KeyRange{0, 0};
    every = {__reduce_max_sync(~0u, most), __reduce_min_sync(~0u, least)};
  }
};

// Queries of any sequence: others may hold anything.
__device__ __forceinline__ KeyRange queries_of_sequences(const Attention& x) {
  return x.cu_q ? KeyRange{max(x.cu_q[0], 0), min(x.cu_q[x.segments], x.L)} : KeyRange{0, x.L};
}

// Of a batch entry's tiles of range_tile queries, whose keys are given, those that attend keys [from, to),
// from the first to the last, and the keys that they attend; by any warp.
struct Meeting {
  int first, last;
  KeyRange keys;
};
__device__ __forceinline__ Meeting tiles_that_meet(const int2* keys_of_tiles, int tiles, int from, int to) {
  int first = INT_MAX / range_tile, last = 0;
  KeyRange keys{INT_MAX, 0};
#pragma unroll 1
  for (int n = tg::cuda::tiles::lane_id(); n < tiles; n += 32) {
    const int2 r = keys_of_tiles[n];
    if (r.x < to && r.y > from)
      first = min(first, n), last = n + 1, keys = {min(keys.from, r.x), max(keys.to, r.y)};
  }
  return {__reduce_min_sync(~0u, first),
          __reduce_max_sync(~0u, last),
          {__reduce_min_sync(~0u, keys.from), __reduce_max_sync(~0u, keys.to)}};
}

// {ξ, u} of queries i0 … i0 + Queries of a head, asked for as tiles are. Beyond L they are zeros: P = 1 and
// z_A = 0 meet rows of zeros.
template <int Queries>
__device__ __forceinline__ void fetch_stats(float2* to, const Attention& x, const Work& work, int b, int h,
                                            int i0) {
  if (threadIdx.x >= Queries) return;
  const int i = i0 + threadIdx.x;
  const float2* source = work.stats + (i64(b) * x.H + h) * x.L;
  ptx::cp_async_8(ptx::shared_address(to + threadIdx.x), i < x.L ? source + i : source, i < x.L ? 8 : 0);
}
// The same at once, and P = 0 beyond L.
template <int Queries>
__device__ __forceinline__ void load_stats(float2* to, const Attention& x, const Work& work, int b, int h,
                                           int i0) {
  for (int n = threadIdx.x; n < Queries; n += blockDim.x)
    to[n] = i0 + n < x.L ? work.stats[(i64(b) * x.H + h) * x.L + i0 + n] : float2{INFINITY, 0};
}

// The thread's elements of the part of 16 × 8 at (row, column) of scores, which have keys or queries as rows:
// e = 0, 1 of the first row, 2, 3 of the eighth after it.
template <bool by_query>
struct Part {
  int row, column;
  __device__ int query(int e) const { return by_query ? row + e / 2 * 8 : column + e % 2; }
  __device__ int key(int e) const { return by_query ? column + e % 2 : row + e / 2 * 8; }
};

// Of one head: from q·k to the score in units of log 2.
template <class S>
struct Extras {
  float factor, cap;
  const S* bias;
  i64 bias_row, bias_col;
  __device__ Extras(const Attention& x, int b, int h)
      : factor(static_cast<float>(x.softcap != 0 ? x.scale / x.softcap : x.scale * log2_e)),
        cap(static_cast<float>(x.softcap * log2_e)),
        bias(x.bias.data ? static_cast<const S*>(x.bias.data) + b * x.bias.batch + h * x.bias.head : nullptr),
        bias_row(x.bias.row),
        bias_col(x.bias.col) {}
  __device__ float score(float s, int i, int j, bool inside, float* slope) const {
    s *= factor;
    *slope = 1;
    if (cap != 0) {
      const float t = tanhf(s);
      s = cap * t;
      *slope = 1 - t * t;
    }
    if (bias && inside) s += static_cast<float>(log2_e) * widen(bias[i * bias_row + j * bias_col]);
    return s;
  }
};

// Words for a thread's four elements of a part of 16 queries (rows) × 8 keys: elements 0, 1 of query i and 2,
// 3 of query i + 8, keys j and j + 1 with j = key0 + 2t. Neighbours need one block of four keys for each
// query: each makes one and they swap halves.
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
// The same of a part of 16 keys (rows) × 8 queries: elements 0, 1 of key j = key0 + g and 2, 3 of key j + 8,
// queries i and i + 1. The four lanes of a block of four keys need four blocks: each makes one.
__device__ inline void column_words(const Dropout<float>& d, int batch_head, int i, int key0,
                                    std::uint32_t (&w)[4]) {
  const int g = threadIdx.x % 32 / 4, me = g % 4;
  const Words own = d.words(batch_head, i + me % 2, key0 + g / 4 * 4 + me / 2 * 8);
  std::uint32_t got[4];
  got[0] = own[me];
#pragma unroll
  for (int r = 1; r < 4; ++r) got[r] = __shfl_xor_sync(~0u, own[me ^ r], 4 * r);
#pragma unroll
  for (int e = 0; e < 4; ++e) {  // element e came from the lane whose number is e
    const int r = e ^ me;
    w[e] = r < 2 ? r == 0 ? got[0] : got[1] : r == 2 ? got[2] : got[3];
  }
}

}  // namespace attn
}  // namespace tg::cuda
