// Attention as its CUDA kernels see it: operands, options, the keys of a query and the dropout mask. The
// mathematics is that of backends/cpu/kernels/attention.h:
//
//   a = cap·tanh(scale·q·k / cap) + bias      (no cap: scale·q·k + bias), −∞ outside the mask
//   P = exp(a − ξ),  ξ = log(Σ_j exp(a_j) + exp(sink)),  O = (P ⊛ D)·V,  D the dropout factors 0 or 1/(1 − p)
#pragma once

#include "backends/cuda/kernels/elements.cuh"
#include "core/rng.h"
#include "ops/flash_attn.h"

namespace tg::cuda {

constexpr double log2_e = 1.4426950408889634074, ln_2 = 0.69314718055994530942;

struct Powers;  // split_terms.cuh

struct Attention {
  // [B, heads, rows, size] with a contiguous last axis; strides in elements.
  struct Operand {
    void* data = nullptr;
    i64 batch = 0, head = 0, row = 0;
    template <class S>
    __device__ S* at(int b, int h) const {
      return static_cast<S*>(data) + b * batch + h * head;
    }
  };
  // Broadcast to [B, H, L, T]: stride 0 where the axis is broadcast.
  struct Bias {
    void* data = nullptr;
    i64 batch = 0, head = 0, row = 0, col = 0;
  };

  DType type = DType::f32;
  bool tf32 = false;  // f32 may be rounded to TF32 before products
  int B = 0, H = 0, Hk = 0, L = 0, T = 0, d = 0, dv = 0;
  Operand q, k, v, o, z_o, z_q, z_k, z_v;
  void* lse = nullptr;  // ξ [B, H, L], contiguous, of the compute type
  const void* z_lse = nullptr;
  double scale = 1, softcap = 0, dropout = 0;
  bool causal = false, top_left = false, free_order = false;
  int window_left = -1, window_right = -1;  // of the bottom-right position; -1: no end
  Bias bias, z_bias;
  const void* sink = nullptr;  // [H]
  void* z_sink = nullptr;
  const int *cu_q = nullptr, *cu_k = nullptr;  // [segments + 1]
  int segments = 0;
  const void* lengths = nullptr;  // [B]
  bool lengths_are_i64 = false;
  const i64* rng = nullptr;  // {seed, step}
  i64 rng_stride = 1, stream = 0;
  std::uint32_t dropout_bound = 0;
  const Powers* powers = nullptr;  // [B, Hk], of operands that are Halves

  int group() const { return Hk == 0 ? 1 : H / Hk; }
};

// The operands of a call of flash_attn or flash_attn_backward. In flash_attn.cu.
Attention attention_of(const Call& call);

// Memory the backward works in, O(B·H·L). Tiles are of 64 queries.
constexpr int range_tile = 64;
struct Work {
  void* u;        // [B, H, L] of the compute type
  int2* some;     // [B, tiles]: keys {from, to} that some query of the tile attends
  int2* every;    // [B, tiles]: keys that all of them attend
  float2* stats;  // [B, H, L]: ξ in units of log 2 (+∞ where P is 0) and u, for tensor cores
  // In one pass also z_Q's sums, O(B·H·L·d): [walkers, B, H, 16-row groups, d/8] parts of 16 × 8 in the order
  // in which a warp's registers hold them.
  float* z_q = nullptr;
  // In order, the blocks of a key head: each walks over some of its keys and has sums of its own. In free
  // order 1: all blocks add to the same.
  int walkers = 1;
  std::size_t bytes = 0;

  // Of query head `head` = (walker·B + b)·H + h, rows 16·rows … and columns 8·column … of z_Q's sums.
  __host__ __device__ float* z_q_part(const Attention& x, i64 head, int rows, int column) const {
    return z_q + ((head * groups_of_rows(x) + rows) * (x.d / 8) + column) * 128;
  }
  __host__ __device__ static int groups_of_rows(const Attention& x) {
    return (x.L + range_tile - 1) / range_tile * (range_tile / 16);
  }

  Work(const Attention& x, int sums_of_z_q, std::byte* base) : walkers(sums_of_z_q) {
    const auto take = [&](std::size_t n) {
      std::byte* p = base + bytes;
      bytes += (n + 255) / 256 * 256;
      return static_cast<void*>(p);
    };
    const std::size_t rows = std::size_t(x.B) * x.H * x.L,
                      tiles = std::size_t(x.B) * ((x.L + range_tile - 1) / range_tile);
    u = take(rows * size_of(compute_type(x.type)));
    some = static_cast<int2*>(take(tiles * sizeof(int2)));
    every = static_cast<int2*>(take(tiles * sizeof(int2)));
    stats = static_cast<float2*>(take(size_of(x.type) <= 4 ? rows * sizeof(float2) : 0));
    const std::size_t groups = std::size_t(walkers) * x.B * x.H * groups_of_rows(x);
    if (groups > 0) z_q = static_cast<float*>(take(groups * (x.d / 8) * 128 * sizeof(float)));
  }
};

// z_bias and z_sink; in bias_gradient.cu.
void launch_bias_and_sink(const Stream& s, const Attention& x, const Work& work);

// The kernels for any dtype and head size, in plain.cu.
void launch_plain_forward(const Stream& s, const Attention& x);
void launch_plain_backward(const Stream& s, const Attention& x, const Work& work);

// On tensor cores: rows that begin at multiples of 16 bytes and have as many; bf16 and f16 with head sizes up
// to 576 (q, k) and 512 (v), f32 up to 128. Wide heads are those beyond 128.
bool fits_mma(const Attention& x);
inline bool is_wide(const Attention& x) {
  return x.d > 128 || x.dv > 128;
}
// Heads to 128, in forward_sm80.cu and backward_sm80.cu.
void launch_mma_forward(const Stream& s, const Attention& x);
void launch_mma_backward(const Stream& s, const Attention& x, const Work& work);
// In backward_one_pass_sm80.cu.
// Work::walkers of one pass; 0 where it does not fit, or two passes are faster.
int one_pass_walkers(const Attention& x, const Gpu& gpu);
void launch_one_pass(const Stream& s, const Attention& x, const Work& work);
// In forward_wide_sm80.cu and backward_wide_sm80.cu.
bool fits_wide_forward(const Attention& x, const Gpu& gpu);
void launch_wide_forward(const Stream& s, const Attention& x);
bool fits_wide_backward(const Attention& x, const Gpu& gpu);
void launch_wide_key_gradients(const Stream& s, const Attention& x, const Work& work);
void launch_wide_query_gradients(const Stream& s, const Attention& x, const Work& work);
// f32 whose operands are Halves, of one term or two.
void launch_tf32_forward(const Stream& s, const Attention& x);
void launch_tf32_backward(const Stream& s, const Attention& x, const Work& work);
void launch_f32_forward(const Stream& s, const Attention& x);
void launch_f32_backward(const Stream& s, const Attention& x, const Work& work);

#if defined(__CUDACC__)

// Keys [from, to) that a query attends: one interval, whatever the options.
struct KeyRange {
  int from, to;
};

__device__ inline int kv_length(const Attention& x, int b) {
  const i64 n =
      x.lengths_are_i64 ? static_cast<const i64*>(x.lengths)[b] : i64{static_cast<const int*>(x.lengths)[b]};
  return static_cast<int>(n < 0 ? 0 : n < x.T ? n : x.T);
}

// Within 0 … T even for boundaries that are not: the fault is told elsewhere.
__device__ inline KeyRange keys_of_query(const Attention& x, int b, int i) {
  int first_query = 0, queries = x.L, first_key = 0, keys = x.T;
  if (i >= x.L) return {0, 0};
  if (x.cu_q) {
    int low = 0, high = x.segments;  // the last segment that starts at or before i and is not empty
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (x.cu_q[middle] <= i ? low : high) = middle;
    }
    if (x.segments == 0 || i < x.cu_q[low] || i >= x.cu_q[low + 1]) return {0, 0};
    first_query = x.cu_q[low], queries = x.cu_q[low + 1] - first_query;
    first_key = x.cu_k[low], keys = x.cu_k[low + 1] - first_key;
    if (first_key < 0 || keys < 0 || keys > x.T - first_key) return {0, 0};
  } else if (x.lengths) {
    keys = kv_length(x, b);
  }
  const i64 row = i - first_query, position = row + keys - queries;
  i64 from = 0, to = keys;
  const i64 diagonal = (x.top_left ? row : position) + 1;
  if (x.causal && diagonal < to) to = diagonal;
  if (x.window_left >= 0 && position - x.window_left > from) from = position - x.window_left;
  if (x.window_right >= 0 && position + x.window_right + 1 < to) to = position + x.window_right + 1;
  if (from >= to) return {0, 0};
  return {first_key + static_cast<int>(from), first_key + static_cast<int>(to)};
}

// The union of the intervals of a warp's lanes, each giving one; {0, 0} if all are empty.
__device__ inline KeyRange warp_union(KeyRange r) {
  const int from = __reduce_min_sync(~0u, r.from < r.to ? r.from : INT_MAX),
            to = __reduce_max_sync(~0u, r.to);
  return from < to ? KeyRange{from, to} : KeyRange{0, 0};
}

// Philox of core/rng.h in registers: std::array has no place in device code.
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

// Dropout factors 0 or 1/(1 − p) of the scores of one call.
template <class C>
struct Dropout {
  std::uint64_t key = 0;
  std::uint32_t bound = 0;
  C kept = 1;

  __device__ explicit Dropout(const Attention& x) {
    if (x.dropout <= 0) return;
    const i64 step = x.rng[x.rng_stride];
    const Words k = philox_words({static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32),
                                  static_cast<std::uint32_t>(x.stream), 0},
                                 static_cast<std::uint64_t>(x.rng[0]));  // node_key
    key = k.x | std::uint64_t{k.y} << 32;
    bound = x.dropout_bound;
    kept = static_cast<C>(1 / (1 - x.dropout));
  }
  // Those of the four keys from `four`, a multiple of 4: attention_counter.
  __device__ Words words(int batch_head, int query, int four) const {
    return philox_words({static_cast<std::uint32_t>(query), static_cast<std::uint32_t>(four) / 4,
                         static_cast<std::uint32_t>(batch_head), 0},
                        key);
  }
  __device__ C factor(std::uint32_t word) const { return word >= bound ? kept : C(0); }
};

#endif

}  // namespace tg::cuda
