// Memory that attention needs in addition to its operands. The backward needs O(B·H·L), and its one-pass
// kernels need more. f32 operands also need f16 copies.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "backends/cuda/attention/options.h"
#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda::attention {

// Bump allocator. Each allocation is 256-byte aligned. With a null base it only counts bytes.
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

constexpr int range_tile = 64;  // queries per tile, for the key ranges below

// Whether f32 operands are split into two f16 values, for f32 accuracy. With TF32, one f16 value is enough.
inline bool has_two_f16(const AttentionCall& x) {
  return x.type == DType::f32 && !x.tf32;
}

// Padded head size of Hopper's backward kernel for a call.
inline int backward_width(const AttentionCall& x) {
  return with_constant<64, 128, 192, 256>(x.dv > 128 ? 256 : std::max(x.d, x.dv),
                                          [](auto d) { return int{d}; });
}
// Queries per tile of that kernel. With two f16 values per f32 element (terms = 2), shared memory has room
// for fewer queries.
constexpr int backward_queries(int width, bool last_stores, int terms) {
  return terms == 2     ? (width <= 64 ? 64 : 32)
         : width <= 64  ? 128
         : width <= 128 ? (last_stores ? 64 : 80)
         : width <= 192 ? 48
                        : 64;
}
// Whether the last block that adds to a tile's z_Q also stores the result. These kernels also start early
// (programmatic launch) and have smaller tiles. They are not used in these cases:
// - There are many keys. The last blocks of the grid would delay the others.
// - f32 elements are split into two f16 values. No shared memory is left then.
// - f32 elements are rounded to one f16 value, and there is a softcap. No registers are left then.
// - 16-bit types have a softcap. This is too rare to justify separate kernels.
inline bool last_stores(const AttentionCall& x) {
  return backward_width(x) <= 128 && !x.nondeterministic && x.T <= (is_uneven(x) ? 2048 : 1024) &&
         x.softcap == 0 && !has_two_f16(x);
}

// Blocks per cluster of Hopper's backward kernel.
constexpr int backward_blocks(int width) {
  return width > 192 ? 2 : 1;
}

// Blocks per multiprocessor of Hopper's forward kernels for heads of at most 64 queries.
constexpr int short_blocks(int width) {
  return width <= 64 ? 3 : 2;
}

// Work division of the forward on Hopper, in division_sm90.cpp. A work item is some queries of a head with
// the keys that they see. If there are fewer items than multiprocessors, the keys of each item are split into
// parts, and the results of the parts are merged. Queries of several heads that share keys then form one
// tile.

// At head size 64, calls with fewer keys than this use different tiles.
constexpr int few_keys = 2048;

// Queries per item, keys per tile, and blocks per multiprocessor; equal to the TileShape in shapes_sm90.h.
struct ForwardTile {
  int queries, keys, blocks = 1;
};
ForwardTile forward_tile(const AttentionCall& x);

// Returns the call with all query heads of a key head flattened into one head. The rows of this head are the
// rows of the query heads, head after head. Row i then has the mask of query i % L of the original head, and
// the sink of its query head. Returns `x` unchanged if flattening does not reduce the number of items, or if
// q or o is not stored in this order. (ξ is always stored in this order.)
AttentionCall with_heads_as_rows(const AttentionCall& x);

// Number of parts into which the keys of each item are split. It is 1 if no split is faster.
int parts_of_keys(const AttentionCall& x, const Gpu& gpu);

// Work counters of a forward whose blocks fetch items dynamically. `items` counts the items fetched beyond
// the first one of each block. `blocks` counts the blocks that found no further item. Both are zero between
// calls. The last block to leave clears them, which saves a memset.
struct Taken {
  int items, blocks;
#ifdef __CUDACC__
  __device__ void leave() {
    __threadfence();  // all items fetched by this block have been counted
    if (atomicAdd(&blocks, 1) + 1 == static_cast<int>(gridDim.x)) items = blocks = 0;
  }
#endif
};

// Device memory of a call. The chosen kernel does not use pointers that are null.
struct Workspace {
  void* u = nullptr;             // [B, H, L] of the compute type
  void* bases = nullptr;         // [B, H, L] of RowBase<compute type>
  unsigned char* far = nullptr;  // [B, H, groups of 16 queries]: whether a row of the group is far
  int2* some = nullptr;          // [B, tiles]: keys {from, to} that at least one query of the tile sees
  int2* every = nullptr;         // [B, tiles]: keys that all queries of the tile see
  // [B, H, L] {ξ in units of log 2, u} for tensor cores. ξ is +∞ in rows with P = 0 and in far rows.
  float2* stats = nullptr;
  // f32 accumulators of z_Q for the one-pass kernels: [workers, B, H, 16-row groups, d/8] fragments of
  // 16 × 8, in the register order of a warp.
  float* z_q = nullptr;
  // Deterministic: the number of blocks per key head. Each block processes some of the keys and has its own
  // accumulator. Nondeterministic: 1, because all blocks add to the same accumulator.
  int workers = 0;
  int parts = 1;           // number of parts of the keys; see o and lse
  int width = 0;           // padded head size of a backward on Hopper; see rows
  Taken* taken = nullptr;  // counters of a forward on Hopper; not part of the workspace: outlives the call
  // Results of each part, for a forward on Hopper with split keys: O [parts, B, H, L, dv] and {c, π} [parts,
  // B, H, L]. In decoding, the parts are key ranges in the order of Partial (decoding_merge.cuh).
  float* o = nullptr;
  float2* lse = nullptr;
  // For a backward on Hopper, with backward_queries() queries per tile. `rows` has ξ in units of log 2 (+∞ in
  // rows with P = 0 and in far rows) and u. `seen` has the visible keys. `z_q` then has queries·width
  // accumulators per tile, in the order of its warps' registers.
  float* rows = nullptr;  // [B, H, tiles, {ξ, u}, queries]
  // [B, tiles, 2·queries + 4]: first and last key of each query, then two ranges {from, to}: the keys that
  // all queries see, and the keys that at least one query sees.
  int* seen = nullptr;
  // [B, H, tiles, blocks per cluster]: the number of clusters that have added to the block's columns of the
  // tile's z_Q. In decoding, this is the number of finished ranges (bytes_of_counters()). Like `taken`, it is
  // then not part of the workspace.
  int* counters = nullptr;
  std::size_t bytes = 0;

  Workspace() = default;
  // For the portable backward. `sums_of_z_q` is `workers`; 0 for two passes.
  Workspace(const AttentionCall& x, int sums_of_z_q, std::byte* base);

  // For a backward on Hopper.
  Workspace(const AttentionCall& x, std::byte* base);

  // For a forward with split keys: results of `rows` rows for each part.
  static Workspace of_parts(int parts, std::size_t rows, int dv, std::byte* base);

  TG_HOST_DEVICE static int tiles(const AttentionCall& x) { return (x.L + range_tile - 1) / range_tile; }
  TG_HOST_DEVICE static int far_groups(const AttentionCall& x) { return (x.L + 15) / 16; }
  // Allocates the memory that every backward needs.
  void take_rows(Arena& memory, const AttentionCall& x);
  TG_HOST_DEVICE static int groups_of_rows(const AttentionCall& x) { return tiles(x) * (range_tile / 16); }
  // Keys that all queries of query i's tile see.
  TG_HOST_DEVICE KeyRange keys_of_all(const AttentionCall& x, int b, int i) const {
    const int2 r = every[b * tiles(x) + i / range_tile];
    return {r.x, r.y};
  }
  // The 16 × 8 fragment at rows 16·rows and columns 8·column of the z_Q accumulator of head = (worker·B +
  // b)·H + h.
  TG_HOST_DEVICE float* z_q_part(const AttentionCall& x, long long head, int rows, int column) const {
    return z_q + ((head * groups_of_rows(x) + rows) * (x.d / 8) + column) * 128;
  }
};
// If an argument is larger, nvcc reloads its members at each use, and ptxas then spills registers.
static_assert(sizeof(Workspace) <= 128);

// Scaling exponents of a key head and its query heads. The kernels multiply q·2^q instead of q. The other
// operands are scaled in the same way.
struct Powers {
  int q, k, v, z_o;
  int z_a;  // kernels multiply z_A ⋅ 2^(room_for_z_a + z_o + v + z_a) and P ⋅ 2^room_for_p
  // P is at most 1 for the ξ of these scores, but flash_attn_backward accepts any ξ. f16 has room for P up to
  // 2⁸. It has room for z_A up to 2⁶ times its bound for P ≤ 1.
  static constexpr int longest = 14, room_for_p = 8, room_for_z_a = 10;
  // The exponent of the factor by which z_A is scaled in the kernels' GEMMs.
  TG_HOST_DEVICE int of_z_a() const { return room_for_z_a + z_o + v + z_a; }
};

// f32 operands of a call as f16 values, scaled by a power of two 2ᵉ. With one value per element, x·2ᵉ is
// rounded to f16. An f16 has 10 fraction bits, like TF32, and f16 GEMMs are twice as fast. With two, x·2ᵉ =
// high + low, and three f16 GEMMs give f32 accuracy (tile/terms.cuh). Each operand of each key head has its
// own e. It is chosen such that the longest row has at most length 2¹⁴. With one value, elements down to 2⁻²⁸
// of that length keep all fraction bits. With two values, the error is less than 2⁻²² of the element or 2⁻³⁸
// of the longest row, whichever is larger.
struct SplitOperands {
  struct SplitOperand {
    AttentionCall::TensorView from;
    __half* to = nullptr;      // [B, heads, rows, terms·width]
    int2* greatest = nullptr;  // [B, heads, chunks]: exponents k of bounds 2ᵏ: of row lengths, of |z_ξ|
    int heads = 0, rows = 0, size = 0;
    bool keys = false;
    TG_HOST_DEVICE int chunks() const { return (rows + chunk - 1) / chunk; }
    TG_HOST_DEVICE long long blocks(int batch) const {
      return static_cast<long long>(batch) * heads * chunks();
    }
  };
  static constexpr int chunk = 128;  // rows per block
  int terms, width;                  // f16 values per element, 1 or 2; padded head size
  int count;
  SplitOperand operand[4];  // q, k, v, and for a backward z_o
  Powers* powers;           // [B, Hk]
  std::size_t bytes = 0;

  // If `boxes` is set, rows are padded for Hopper's TMA boxes of 64 columns. Each box has one value per
  // element.
  SplitOperands(const AttentionCall& x, bool backward, bool boxes, std::byte* base);
};

}  // namespace tg::cuda::attention
