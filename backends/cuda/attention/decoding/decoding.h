// Decoding: the forward for few queries per key head and possibly many keys. It reads each key once, at full
// memory bandwidth. Keys are divided into ranges. Results do not depend on which block computes a range. A
// query's result is bitwise independent of the rest of the batch.
//
// The same kernels compute all calls with a paged cache. If a call has many queries, they are divided into
// tiles with as few rows as in a decoding step. A row's result is then bitwise identical in a prompt and in a
// decoding step (ops/paged_attn.h).
#pragma once

#include "backends/cuda/attention/workspace.h"

namespace tg::cuda::attention::decoding {

constexpr int most_entries = 1024;  // tiles per launch; each block keeps a table of them
constexpr int item_bytes = 64;
constexpr int most_noted = 40;  // items per block in a shared-memory table; limited by 99 KiB

// The rows of a GEMM are the queries of all heads that share a key head. Row r is query r / group of head r %
// group.
TG_HOST_DEVICE inline int group_of(const AttentionCall& x) {
  return x.H / x.Hk;
}
TG_HOST_DEVICE inline int rows_of(const AttentionCall& x) {
  return group_of(x) * x.L;
}
// Whether heads are too wide for a warp's registers (decoding_latent_sm80.cu). Their values are part of the
// keys (MLA latents).
TG_HOST_DEVICE inline bool is_of_latents(const AttentionCall& x) {
  return x.d > 256 || x.dv > 256;
}
// Maximum number of rows of a tile, limited by registers.
inline int most_rows(const AttentionCall& x) {
  return x.type != DType::f32 && ((x.d <= 128 && x.dv <= 128) || is_of_latents(x)) ? 16 : 8;
}
inline int rows_of_tile(const AttentionCall& x) {
  return rows_of(x) < most_rows(x) ? rows_of(x) : most_rows(x);
}

// Ranges [begin(n), begin(n + 1)) of equal length.
struct EqualRanges {
  int each;
  TG_HOST_DEVICE int of(int key) const { return key / each; }
  TG_HOST_DEVICE unsigned begin(int n) const { return static_cast<unsigned>(n) * each; }
};
// Ranges for paged caches, independent of the cache's capacity. Ranges are short at the start of a sequence,
// so that several blocks share a short sequence. Later ranges have 1024 keys. After 32 · 1024 keys, ranges
// grow. Each doubling of the length then adds 16 ranges, so few ranges must be merged.
struct GrowingRanges {
  static constexpr int each = 1024, grow_from = 32 * each;
  int bits;  // ranges within the first 1024 keys have 2^bits keys
  TG_HOST_DEVICE int of(int key) const {
    if (key < each) return key >> bits;
    int n = (each >> bits) - 1;
    for (; key >= 2 * grow_from; key /= 2) n += 16;
    return n + (key < grow_from ? key / each : 16 + key / (2 * each));
  }
  TG_HOST_DEVICE unsigned begin(int n) const {
    if (n < each >> bits) return static_cast<unsigned>(n) << bits;
    n -= (each >> bits) - 1;
    if (n < 32) return static_cast<unsigned>(n) * each;
    return static_cast<unsigned>(16 + n % 16) * 2 * each << (n / 16 - 2);
  }
};

// Layouts of keys. They determine the ranges. Ranges depend on the head sizes and, for contiguous caches, on
// the capacity. They do not depend on the batch or the GPU.
struct InOnePiece {
  using Ranges = EqualRanges;
  static constexpr bool values_in_keys = false;  // whether values are the first columns of keys
  explicit InOnePiece(const AttentionCall&) {}
  static EqualRanges ranges(const AttentionCall& x);
};
struct InPages {
  using Ranges = GrowingRanges;
  bool values_in_keys;
  explicit InPages(const AttentionCall& x) : values_in_keys(values_are_keys(x)) {}
  static GrowingRanges ranges(const AttentionCall& x);
};
// Latents in a paged cache, or in a contiguous one (see in_pages()).
struct OfLatents {
  using Ranges = EqualRanges;
  explicit OfLatents(const AttentionCall&) {}
  static EqualRanges ranges(const AttentionCall& x);
};

// Converts a call with a contiguous cache to a call with a paged cache. Each batch entry is one page, and no
// table is needed.
inline AttentionCall in_pages(AttentionCall x) {
  if (!x.table) x.page = x.T, x.pages = 1, x.pool = static_cast<int>(x.B);
  return x;
}

// Whether decoding supports a call. bf16 and f16 calls must be supported by tensor cores. f32 calls need
// 16-byte aligned rows.
bool takes(const AttentionCall& x, const Gpu& gpu);

// Maximum number of ranges of a sequence.
int ranges_of(const AttentionCall& x);

// Whether a separate block computes each range (decoding_split_kv_sm80.cu). This is faster if a sequence has
// few ranges. Results are bitwise identical.
constexpr int most_split = 8;
bool uses_split_kv(const AttentionCall& x, int ranges, const Gpu& gpu);

// The tiles that a launch computes for all key heads. A tile has `rows` rows, except that the last one may
// have fewer. Each batch entry has of_entry tiles. For a contiguous cache, one launch computes all tiles. For
// a paged cache, their number is limited by the table and by the memory for partial results.
struct Tiles {
  int first, count, of_entry, rows;
};
// The tiles of the nth launch. `count` ≤ 0: there is no such launch.
Tiles tiles_of_launch(const AttentionCall& x, int n);

Workspace workspace(const AttentionCall& x, std::byte* base);

// Decoding of MLA latents with many heads by wgmma (decoding_latent_sm90.cu). A tile is one query with the
// heads that share a key head. If there are more than 64 heads, they are divided into pieces of at most 64.
// The decision does not depend on the number of sequences. For a paged cache, it does not depend on the
// number of queries either.
bool takes_by_wgmma(const AttentionCall& x, const Gpu& gpu);
constexpr int most_heads = 64;
TG_HOST_DEVICE inline int heads_of_piece(const AttentionCall& x) {
  return group_of(x) < most_heads ? group_of(x) : most_heads;
}
TG_HOST_DEVICE inline int pieces_of(const AttentionCall& x) {
  return (group_of(x) + most_heads - 1) / most_heads;
}
// Whether few heads share a single key head. A separate kernel computes this case
// (decoding_latent_16_sm90.cu). A contiguous cache must also be dense. The decision is the same for all paged
// caches.
constexpr int few_heads = 16;
inline bool takes_few_heads(const AttentionCall& x) {
  const bool dense = x.T % 8 == 0 && (x.B == 1 || x.k.batch == x.T * x.k.row);
  return x.H <= few_heads && x.Hk == 1 && x.d % 64 == 0 && (x.table || dense);
}
EqualRanges ranges_by_wgmma(const AttentionCall& x);
// Queries that the nth launch computes; each sequence has L queries. `count` ≤ 0: there is no such launch.
Tiles queries_of_launch(const AttentionCall& x, int n);
// Results of the ranges: O [queries, Hk, pieces, ranges, heads of a piece, dv] and ξ.
Workspace workspace_by_wgmma(const AttentionCall& x, std::byte* base);

// Counters of finished ranges for each tile of a launch, key head and writing warp. They are zero between
// launches, so they must outlive a launch.
constexpr int most_writers = 12;
inline std::size_t bytes_of_counters(const AttentionCall& x) {
  return std::size_t(tiles_of_launch(x, 0).count) * x.Hk * most_writers * sizeof(int);
}

}  // namespace tg::cuda::attention::decoding
