// Memory that attention needs in addition to its operands: of the backward O(B·H·L), more for one pass; and
// the f16 terms of f32 operands.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "backends/cuda/attention/options.h"
#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda::attention {

// Hands out memory, each piece 256-byte aligned; with a null base it only counts.
struct Arena {
  std::byte* base;
  std::size_t bytes = 0;
  template <class E>
  E* take(std::size_t count) {
    std::byte* p = base + bytes;
    bytes += (count * sizeof(E) + 255) / 256 * 256;
    return reinterpret_cast<E*>(p);
  }
};

constexpr int range_tile = 64;  // queries

// Whether f32 is multiplied with its own accuracy, and not TF32's.
inline bool is_of_two_terms(const AttentionCall& x) {
  return x.type == DType::f32 && !x.tf32;
}

// The head size of the backward's kernels on Hopper that a call takes, and their queries of a tile.
inline int backward_width(const AttentionCall& x) {
  return with_constant<64, 128, 192, 256>(x.dv > 128 ? 256 : std::max(x.d, x.dv),
                                          [](auto d) { return int{d}; });
}
// Of two f16 terms (f32), shared memory has room for no more.
constexpr int backward_queries(int width, bool last_stores, int terms) {
  return terms == 2     ? (width <= 64 ? 64 : 32)
         : width <= 64  ? 128
         : width <= 128 ? (last_stores ? 64 : 80)
         : width <= 192 ? 48
                        : 64;
}
// Whether it pays that the last block to add to a tile's z_Q stores it, that kernels begin early, and that
// tiles are small: with many keys, the blocks that come last in the grid would hold the others up. Two terms
// leave no shared memory for it, one term of f32 with a softcap no registers, and the softcap of other types
// is too rare for kernels of its own.
inline bool last_stores(const AttentionCall& x) {
  return backward_width(x) <= 128 && !x.nondeterministic && x.T <= (is_uneven(x) ? 2048 : 1024) &&
         x.softcap == 0 && !is_of_two_terms(x);
}

// Blocks of a cluster of those kernels.
constexpr int backward_blocks(int width) {
  return width > 192 ? 2 : 1;
}

// Blocks of a multiprocessor, of the forward on Hopper, where a head has at most 64 queries.
constexpr int short_blocks(int width) {
  return width <= 64 ? 3 : 2;
}

// How the forward on Hopper divides its work, in division_sm90.cpp. An item is some queries of a head with
// the keys that they see. Where there are fewer items than multiprocessors, the keys of each are cut in
// parts, whose results are merged; and queries of several heads that share keys become one tile.

// At d 64 there are other shapes for fewer.
constexpr int few_keys = 2048;

// The queries of an item, the keys of its tiles and the blocks of a multiprocessor, as shapes_sm90.h has
// them.
struct ForwardTile {
  int queries, keys, blocks = 1;
};
ForwardTile forward_tile(const AttentionCall& x);

// The call with the queries of all heads that share a key head as queries of one head, those of a head after
// those of the head before, if that makes fewer items and q and o lie so in memory, as ξ does. Which keys a
// query sees, and its sink, are then those of query i % L of the head.
AttentionCall with_heads_as_rows(const AttentionCall& x);

// Into how many parts the keys of an item of such a call are cut; 1 where that is fastest.
int parts_of_keys(const AttentionCall& x, const Gpu& gpu);

// Of a forward whose blocks take one item of work after the other: how many are taken beyond the first of
// each block, and how many blocks have found none left. Zeros between calls: the last block to leave clears
// it, which saves a step that would.
struct Taken {
  int items, blocks;
#ifdef __CUDACC__
  __device__ void leave() {
    __threadfence();  // all that this block took has been counted
    if (atomicAdd(&blocks, 1) + 1 == static_cast<int>(gridDim.x)) items = blocks = 0;
  }
#endif
};

struct Workspace {
  void* u = nullptr;             // [B, H, L] of the compute type
  void* bases = nullptr;         // [B, H, L] of RowBase<compute type>
  unsigned char* far = nullptr;  // [B, H, groups of 16 queries]: whether some row is far (far_rows.cuh)
  int2* some = nullptr;          // [B, tiles]: keys {from, to} that some query of the tile sees
  int2* every = nullptr;         // [B, tiles]: keys that all of them see
  float2* stats =
      nullptr;  // [B, H, L]: ξ in units of log 2 (+∞ where P is 0, and of far rows) and u, for tensor cores
  // In one pass also z_Q's sums: [workers, B, H, 16-row groups, d/8] parts of 16 × 8 in the order in which a
  // warp's registers hold them.
  float* z_q = nullptr;
  // In order, the blocks of a key head: each takes some of its keys and has sums of its own. In free order 1:
  // all blocks add to the same.
  int workers = 0;
  int parts = 1;           // of the keys; see o and lse
  int width = 0;           // of a backward on Hopper; see rows
  Taken* taken = nullptr;  // of a forward on Hopper; not part of the workspace: it outlives the call
  // Of a forward on Hopper whose keys are cut in parts, the results of each: O [parts, B, H, L, dv] and {c,
  // π} [parts, B, H, L]. Of decoding the parts are ranges, in the order of Partial (decoding_merge.cuh).
  float* o = nullptr;
  float2* lse = nullptr;
  // Of a backward on Hopper, in tiles of backward_queries() queries: ξ in units of log 2 (+∞ where P
  // is 0, and of far rows) and u of each, and which keys they see. z_q has queries·width sums of each tile,
  // in the order in which its warps hold them.
  float* rows = nullptr;  // [B, H, tiles, {ξ, u}, queries]
  int* seen = nullptr;  // [B, tiles, 2·queries + 4]: first and last of each query, {from, to} that all see,
                        // that some sees
  // [B, H, tiles, blocks of a cluster]: how many clusters have added to the block's columns of the tile's
  // z_Q. Of decoding, how many ranges have been written (bytes_of_counters()): as `taken` not part of the
  // workspace.
  int* turns = nullptr;
  std::size_t bytes = 0;

  Workspace() = default;
  Workspace(const AttentionCall& x, int sums_of_z_q, std::byte* base);

  // Of a backward on Hopper.
  Workspace(const AttentionCall& x, std::byte* base);

  // Of a forward: results of parts of the keys, `rows` rows of each part.
  static Workspace of_parts(int parts, std::size_t rows, int dv, std::byte* base);

  TG_HOST_DEVICE static int tiles(const AttentionCall& x) { return (x.L + range_tile - 1) / range_tile; }
  TG_HOST_DEVICE static int far_groups(const AttentionCall& x) { return (x.L + 15) / 16; }
  // Memory of what both kinds of backward have.
  void take_rows(Arena& memory, const AttentionCall& x);
  TG_HOST_DEVICE static int groups_of_rows(const AttentionCall& x) { return tiles(x) * (range_tile / 16); }
  // Keys that all queries of the tile of query i see.
  TG_HOST_DEVICE KeyRange keys_of_all(const AttentionCall& x, int b, int i) const {
    const int2 r = every[b * tiles(x) + i / range_tile];
    return {r.x, r.y};
  }
  // Of query head `head` = (worker·B + b)·H + h, rows 16·rows … and columns 8·column … of z_Q's sums.
  TG_HOST_DEVICE float* z_q_part(const AttentionCall& x, long long head, int rows, int column) const {
    return z_q + ((head * groups_of_rows(x) + rows) * (x.d / 8) + column) * 128;
  }
};
// nvcc loads the members of a larger argument again at each use, and ptxas then spills registers.
static_assert(sizeof(Workspace) <= 128);

// Exponents of a key head and its query heads: q holds q·2^q, and so on.
struct Powers {
  int q, k, v, z_o;
  int z_a;  // z_A ⋅ 2^(room_for_z_a + z_o + v + z_a) is multiplied, and P ⋅ 2^room_for_p
  // P is at most 1 for the ξ of these scores, but flash_attn_backward takes any ξ: f16 holds P to 2⁸, and z_A
  // to 2⁶ times its bound for such a P.
  static constexpr int longest = 14, room_for_p = 8, room_for_z_a = 10;
  // Of z_A as it is multiplied.
  TG_HOST_DEVICE int of_z_a() const { return room_for_z_a + z_o + v + z_a; }
};

// The f32 operands of a call as f16 terms: x·2ᵉ rounded to f16, which has the 10 bits of fraction of TF32 and
// is multiplied twice as fast, or x·2ᵉ = high + low, three products with the error of f32 (tile/terms.cuh). e
// is one for each operand and key head, such that the longest of its rows is not longer than 2¹⁴. Numbers
// down to 2⁻²⁸ of that keep all bits in one term, and in two terms what is lost of a number is below 2⁻²² of
// it or 2⁻³⁸ of the longest row, whichever is more.
struct SplitOperands {
  struct SplitOperand {
    AttentionCall::TensorView from;
    __half* to = nullptr;      // [B, heads, rows, terms·width]
    int2* greatest = nullptr;  // [B, heads, chunks]: k with 2ᵏ above the length of each row, and above |z_ξ|
    int heads = 0, rows = 0, size = 0;
    bool keys = false;
    TG_HOST_DEVICE int chunks() const { return (rows + chunk - 1) / chunk; }
    TG_HOST_DEVICE long long blocks(int batch) const {
      return static_cast<long long>(batch) * heads * chunks();
    }
  };
  static constexpr int chunk = 128;  // rows of a block
  int terms, width;                  // 1 or 2; of heads, padded
  int count;
  SplitOperand operand[4];  // q, k, v, and z_o of a backward
  Powers* powers;           // [B, Hk]
  std::size_t bytes = 0;

  // `boxes`: for Hopper's copies of tiles, of 64 columns, each of one term.
  SplitOperands(const AttentionCall& x, bool backward, bool boxes, std::byte* base);
};

}  // namespace tg::cuda::attention
