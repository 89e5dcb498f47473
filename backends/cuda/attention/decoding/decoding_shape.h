// What decoding's kernels are compiled for, and a block's shared memory.
#pragma once

#include "backends/cuda/attention/decoding/decoding.h"
#include "backends/cuda/attention/shapes.h"

namespace tg::cuda::attention::decoding {

// d, dv ≤ D, at most `rows` queries of a key head, numbers of `size` bytes. Eight, four or two warps stream:
// each has slices of the keys of its own, in stages of its own. Others write results.
template <int size_, int D_, int rows_, int streams_>
struct TileShape {
  static constexpr int size = size_, D = D_, rows = rows_, streams = streams_, writers = rows == 8 ? 4 : 2,
                       threads = 32 * (streams + writers);
  // Of a multiprocessor, which has one: what ptxas is told of it is nothing (0) where that would make it
  // spill. Eight streams have 64 to 128 KiB of copies under way: 64 are enough for what memory delivers. Four
  // are for where shared memory has no room for them.
  static constexpr int least_blocks = streams == 8 ? 0 : 1;
  static constexpr int keys = (D <= 64 ? 64 : 32) / size, stages = 2;  // of a slice; of a stream
  static constexpr int half = keys * D * size, stage = 2 * half, ring = stages * stage;  // keys, then values
  static constexpr int step = streams * keys;  // from a stream's slice to its next
  // Whether a stream computes short tiles by itself: eight of the largest have no registers left for it.
  static constexpr bool takes_short = !(D == 128 && rows == 16 && streams == 8);
  // Rows of a tile, as rows_of_tile() has it: computed where it is needed, not kept in a register.
  TG_HOST_DEVICE static int rows_of_tile(const AttentionCall& x) {
    constexpr int most = size == 4 || D > 128 ? 8 : 16;
    return rows_of(x) < most ? rows_of(x) : most;
  }
  // After the rings, for each stream: which keys each query sees, or P in f32; then the table of entries;
  // items, and one of each stream; which tiles are short; what the streams leave, c and π of each query, and
  // G.
  static constexpr int row = D + 4;  // numbers of G, padded for the banks
  static constexpr int of_stream = (size == 4 ? keys : 2) * rows * int(sizeof(int)), seen = streams * ring,
                       entries = seen + streams * of_stream,
                       noted = aligned(entries + (most_entries + 1) * 3 * int(sizeof(int)), 16),
                       shorts = noted + (most_noted + streams) * item_bytes,
                       tops = aligned(shorts + int(sizeof(int)) + most_entries * int(sizeof(short)), 16);
  TG_HOST_DEVICE static constexpr int sums(int queries) {
    return tops + aligned(streams * queries * int(sizeof(float2)), 16);
  }
  static constexpr int bytes(int queries) {
    return sums(queries) + streams * queries * row * int(sizeof(float));
  }
};

constexpr int most_streams(int D) {
  return D > 128 ? 4 : 8;
}
// Whether a GPU that this code is compiled for may launch the shape: one with 227 KiB of shared memory for a
// block has room for all streams, and nvcc needs no minutes for the others.
#if defined(__CUDA_ARCH__)
template <class At>
constexpr bool may_be_launched = arch < 900 || arch >= 1200 || At::streams == most_streams(At::D);
#else
template <class At>
constexpr bool may_be_launched = true;
#endif
static_assert(TileShape<2, 128, 16, 8>::bytes(16) <= 227 << 10, "the largest shape");

// The rows that decide how many streams there are, and whether a block has the shared memory: in pages the
// number of rows must not, for how many streams there are decides bits.
inline int rows_of_shape(const AttentionCall& x) {
  return x.table ? most_rows(x) : rows_of(x);
}

// Calls f with the shape of a size and rows for a call: eight streams, or four of heads wider than 128, if a
// block has the shared memory. One item at a time has all of a multiprocessor.
template <int size, int D, int rows, class F>
auto with_streams(const AttentionCall& x, const Gpu& gpu, F&& f) {
  constexpr int most = most_streams(D);
  using Large = TileShape<size, D, rows, most>;
  return Large::bytes(rows_of_shape(x)) <= gpu.shared_per_block ? f(Large())
                                                                : f(TileShape<size, D, rows, most / 2>());
}
// The same for a call of numbers of `size` bytes.
template <int size, class F>
auto with_shape(const AttentionCall& x, const Gpu& gpu, F&& f) {
  return with_constant<64, 128, 256>(std::max(x.d, x.dv), [&](auto d) {
    if constexpr (size == 4 || d > 128)
      return with_streams<size, d, 8>(x, gpu, f);
    else
      return with_constant<8, 16>(rows_of_tile(x),
                                  [&](auto rows) { return with_streams<size, d, rows>(x, gpu, f); });
  });
}

// What the kernel of latents is compiled for: tiles of 64 keys, each 16 of which are multiplied by a pair of
// warps.
struct LatentShape {
  static constexpr int D = 576, D_v = 512, rows = 16, keys = 64, stages = 2, warps = 8, threads = 32 * warps,
                       streams = 1, step = keys, groups = keys / 16;
  static constexpr int tile = keys * D * 2;
  // After the tiles: P; what warps share of rows; the table of entries.
  static constexpr int p = stages * tile, of_rows = p + rows * keys * 2,
                       entries = of_rows + (2 * groups + 1 + 2) * rows * 4,
                       bytes = entries + (most_entries + 1) * 3 * int(sizeof(int));
};

// Named barriers of a block: what streams leave is there; the nth stream may leave more.
enum Barrier { left = 1, may_leave = 2 };

}  // namespace tg::cuda::attention::decoding
