// Which rows a block has, and in which order it traverses tiles.
#pragma once

#include "backends/cuda/attention/options.h"

namespace tg::cuda::attention {

// Some rows from row0 on of a head of [B, heads, length], the batch_head-th of all.
struct TilePosition {
  int batch_head, b, head, row0;
};
// The place of block n: heads in order; rows from the end if that starts the longest first, as for queries
// under a causal mask.
__device__ __forceinline__ TilePosition place(unsigned n, int heads, int length, int rows, bool from_end) {
  const int blocks = (length + rows - 1) / rows, nth = n % blocks, batch_head = n / blocks;
  return {batch_head, batch_head / heads, batch_head % heads, (from_end ? blocks - 1 - nth : nth) * rows};
}
__device__ __forceinline__ TilePosition query_place(const AttentionCall& x, unsigned n, int rows) {
  return place(n, x.H, x.L, rows, true);
}
__device__ __forceinline__ TilePosition key_place(const AttentionCall& x, unsigned n, int rows) {
  return place(n, x.Hk, x.T, rows, false);
}

// The same blocks in another order: the heads in sections of `together`, whose keys and values the
// second-level cache holds, and the longest blocks of a section first.
struct Sections {
  int blocks, together, heads, all_heads, rows;
  __host__ __device__ __forceinline__ int all() const { return blocks * all_heads; }
  __device__ __forceinline__ TilePosition place(int n, bool from_end) const {
    const int section = n / (together * blocks), first = section * together, in = n - first * blocks,
              size = min(together, all_heads - first), nth = in / size, batch_head = first + in - nth * size;
    return {batch_head, batch_head / heads, batch_head % heads, (from_end ? blocks - 1 - nth : nth) * rows};
  }
};

// The tiles of `size` keys that overlap a range.
struct Tiles {
  int from, to;
  __device__ Tiles(int from, int to) : from(from), to(to) {}
  __device__ Tiles(KeyRange r, int size) : from(r.from / size), to((r.to + size - 1) / size) {}
};

// The keys of one of so many parts of the tiles; of no two do the numbers of tiles differ by more than one.
__device__ __forceinline__ KeyRange keys_of_part(Tiles tiles, int size, int part, int parts) {
  const int each = (tiles.to - tiles.from) / parts, longer = (tiles.to - tiles.from) % parts,
            from = tiles.from + part * each + min(part, longer);
  return {from * size, (from + each + (part < longer)) * size};
}

// Iterates over tiles first … last − 1 of a head, beginning at `start` and wrapping around; then the next
// head.
struct Cursor {
  int tile, h;
  __device__ __forceinline__ Cursor after(int first, int last, int start) const {
    const int next = tile + 1 < last ? tile + 1 : first;
    return {next, h + (next == start)};
  }
};

}  // namespace tg::cuda::attention
