// Attention as its CUDA kernels see it: the call, memory the backward works in, launches, and the dropout
// mask. The mathematics is that of ops/attention_call.h.
#pragma once

#include <tilegrad/core/base/rng.h>
#include <tilegrad/ops/flash_attn.h>
#include "backends/cuda/kernels/elements.cuh"
#include "ops/attention_call.h"

namespace tg::cuda {

constexpr double log2_e = 1.4426950408889634074, ln_2 = 0.69314718055994530942;

struct Powers;  // split_terms.cuh

struct Attention : AttentionCall {
  const Powers* powers = nullptr;  // [B, Hk], of operands that are Halves
};

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
