// Maps blocks to rows and orders their tiles.
#pragma once

#include "backends/cuda/attention/options.h"

namespace tg::cuda::attention {

// Rows of a head, starting at row0. batch_head is the index of the head in [B, heads].
struct TilePosition {
  int batch_head, b, head, row0;
};
// Position of block n, head by head. from_end reverses the rows of a head. With a causal mask, the longest
// blocks then start first.
__device__ __forceinline__ TilePosition place(unsigned n, int heads, int length, int rows, bool from_end) {
  const int blocks = (length + rows - 1) / rows, nth = n % blocks, batch_head = n / blocks;
  return {batch_head, batch_head / heads, batch_head % heads, (from_end ? blocks - 1 - nth : nth) * rows};
}
__device__ __forceinline__ TilePosition query_position(const AttentionCall& x, unsigned n, int rows) {
  return place(n, x.H, x.L, rows, true);
}
__device__ __forceinline__ TilePosition key_position(const AttentionCall& x, unsigned n, int rows) {
  return place(n, x.Hk, x.T, rows, false);
}

// Maps blocks to positions in a cache-friendly order. Heads are grouped into sections of `together` heads.
// The keys and values of a section fit in the L2 cache. Within a section the longest blocks start first.
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

// Returns the keys of one part, if the tiles are divided into `parts` parts. The parts have equal numbers of
// tiles, or numbers that differ by one.
__device__ __forceinline__ KeyRange keys_of_part(Tiles tiles, int size, int part, int parts) {
  const int each = (tiles.to - tiles.from) / parts, longer = (tiles.to - tiles.from) % parts,
            from = tiles.from + part * each + min(part, longer);
  return {from * size, (from + each + (part < longer)) * size};
}

// Iterates over tiles first … last − 1 of each head. In a head, it starts at `start` and wraps around.
struct Cursor {
  int tile, h;
  __device__ __forceinline__ Cursor after(int first, int last, int start) const {
    const int next = tile + 1 < last ? tile + 1 : first;
    return {next, h + (next == start)};
  }
};

}  // namespace tg::cuda::attention
