// Decoding: the forward where the queries of the heads that share keys are few, and keys may be many. It
// reads each key once, as fast as memory delivers it. Keys are cut in ranges, by which block computes each
// may change but no bit of the result; and no query's bits depend on others of the batch.
//
// The same kernels compute every call on a cache in pages, also of many queries, in tiles of as few as one
// call of decoding has: there a row has the same bits however it is computed (ops/paged_attn.h).
#pragma once

#include "backends/cuda/attention/workspace.h"

namespace tg::cuda::attention::decoding {

constexpr int most_entries = 1024;  // tiles of a launch: a block has a table of them
constexpr int item_bytes = 64;
constexpr int most_noted =
    40;  // of a block's items, which its warps find in a table: as many as 99 KiB have room for

// Queries of the heads that share a key head, which are the rows of its products: row r is query r / group of
// the head r % group.
TG_HOST_DEVICE inline int group_of(const AttentionCall& x) {
  return x.H / x.Hk;
}
TG_HOST_DEVICE inline int rows_of(const AttentionCall& x) {
  return group_of(x) * x.L;
}
// Heads that are too wide for a warp's registers (decoding_latent_sm80.cu).
TG_HOST_DEVICE inline bool is_of_latents(const AttentionCall& x) {
  return x.d > 256 || x.dv > 256;
}
// Rows that are computed together, at most: as many as there are registers for.
inline int most_rows(const AttentionCall& x) {
  return x.type != DType::f32 && ((x.d <= 128 && x.dv <= 128) || is_of_latents(x)) ? 16 : 8;
}
inline int rows_of_tile(const AttentionCall& x) {
  return rows_of(x) < most_rows(x) ? rows_of(x) : most_rows(x);
}

// Ranges of keys, [begin(n), begin(n + 1)): of as many keys each.
struct EqualRanges {
  int each;
  TG_HOST_DEVICE int of(int key) const { return key / each; }
  TG_HOST_DEVICE unsigned begin(int n) const { return static_cast<unsigned>(n) * each; }
};
// Where a row's bits may not depend on how many keys there can be: ranges are short at the start, so that
// short sequences are shared by several blocks, and from 32 of 1024 keys on they grow, 16 for twice as many
// keys, so that those of a long sequence can be merged.
struct GrowingRanges {
  static constexpr int each = 1024, grow_from = 32 * each;
  int bits;  // of the first 1024 keys, a range has 2^bits
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

// How keys lie, and so are cut: functions of how many keys there can be (in one piece) and of the head sizes,
// and neither of the batch nor of the GPU.
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
// In one piece (in_pages()) or in pages.
struct OfLatents {
  using Ranges = EqualRanges;
  explicit OfLatents(const AttentionCall&) {}
  static EqualRanges ranges(const AttentionCall& x);
};

// A cache in one piece as one in pages: each entry has a page of its own, and needs no table to say which.
inline AttentionCall in_pages(AttentionCall x) {
  if (!x.table) x.page = x.T, x.pages = 1, x.pool = static_cast<int>(x.B);
  return x;
}

// Whether decoding takes a call of bf16 or f16 that tensor cores take, or one of f32 whose rows are in pieces
// of 16 bytes.
bool takes(const AttentionCall& x, const Gpu& gpu);

// How many ranges there can be.
int ranges_of(const AttentionCall& x);

// Whether a block of its own computes each of these ranges (decoding_split_kv_sm80.cu): where a sequence has
// few, and so a multiprocessor. The bits are the same.
constexpr int most_split = 8;
bool uses_split_kv(const AttentionCall& x, int ranges, const Gpu& gpu);

// Tiles of `rows` rows, or less at the end, of the batch entries, of_entry each, that a launch computes, for
// all key heads: all of them in one piece; in pages as many as there is a table for, and memory for the
// results of their ranges.
struct Tiles {
  int first, count, of_entry, rows;
};
// That of the nth launch. None if its count is not positive.
Tiles tiles_of_launch(const AttentionCall& x, int n);

Workspace workspace(const AttentionCall& x, std::byte* base);

// Latents by wgmma (decoding_latent_sm90.cu), of many heads: there a tile is one query of all heads that
// share a key head, in pieces of at most 64 of them. Whether it takes a call is the same for any number of
// sequences and, in pages, of queries.
bool takes_by_wgmma(const AttentionCall& x, const Gpu& gpu);
constexpr int most_heads = 64;
TG_HOST_DEVICE inline int heads_of_piece(const AttentionCall& x) {
  return group_of(x) < most_heads ? group_of(x) : most_heads;
}
TG_HOST_DEVICE inline int pieces_of(const AttentionCall& x) {
  return (group_of(x) + most_heads - 1) / most_heads;
}
// Whether heads are so few, on one key head, that they have a kernel of their own
// (decoding_latent_16_sm90.cu). What is asked of rows in one piece is the same for all caches in pages.
constexpr int few_heads = 16;
inline bool takes_few_heads(const AttentionCall& x) {
  const bool dense = x.T % 8 == 0 && (x.B == 1 || x.k.batch == x.T * x.k.row);
  return x.H <= few_heads && x.Hk == 1 && x.d % 64 == 0 && (x.table || dense);
}
EqualRanges ranges_by_wgmma(const AttentionCall& x);
// Queries of the sequences, L each, that the nth launch computes; none if their count is not positive.
Tiles queries_of_launch(const AttentionCall& x, int n);
// Results of the ranges: O [queries, Hk, pieces, ranges, heads of a piece, dv] and ξ.
Workspace workspace_by_wgmma(const AttentionCall& x, std::byte* base);

// For each tile of a launch, key head and warp that writes, how many ranges have been written: zeros between
// launches, so it outlives them.
constexpr int most_writers = 12;
inline std::size_t bytes_of_counters(const AttentionCall& x) {
  return std::size_t(tiles_of_launch(x, 0).count) * x.Hk * most_writers * sizeof(int);
}

}  // namespace tg::cuda::attention::decoding
