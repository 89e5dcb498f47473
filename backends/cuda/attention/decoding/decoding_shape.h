// Shapes that the decoding kernels are compiled for, and their shared memory.
#pragma once

#include "backends/cuda/attention/decoding/decoding.h"
#include "backends/cuda/attention/shapes.h"

namespace tg::cuda::attention::decoding {

// The shape for d, dv ≤ D, at most `rows` queries per key head, and elements of `size` bytes. Eight, four or
// two warps are streaming warps. Each processes its own slices of the keys and has its own pipeline stages.
// Other warps write results.
template <int size_, int D_, int rows_, int streams_>
struct TileShape {
  static constexpr int size = size_, D = D_, rows = rows_, streams = streams_, writers = rows == 8 ? 4 : 2,
                       threads = 32 * (streams + writers);
  // The minimum number of blocks per multiprocessor, for ptxas. The real number is always 1. With eight
  // streams the number is left unspecified (0), because 1 causes spills. Eight streams have 64 to 128 KiB of
  // loads in flight, and 64 KiB saturate the memory bandwidth. Four streams are for GPUs whose shared memory
  // is too small for eight.
  static constexpr int least_blocks = streams == 8 ? 0 : 1;
  static constexpr int keys = (D <= 64 ? 64 : 32) / size, stages = 2;  // keys per slice; stages per stream
  static constexpr int half = keys * D * size, stage = 2 * half, ring = stages * stage;  // keys, then values
  static constexpr int step = streams * keys;  // distance in keys between two slices of a stream
  // Whether one stream can compute a short tile by itself. Eight streams of the largest shape have no
  // registers for this.
  static constexpr bool takes_short = !(D == 128 && rows == 16 && streams == 8);
  // Rows per tile, equal to rows_of_tile(). Recomputed at each use to save a register.
  TG_HOST_DEVICE static int rows_of_tile(const AttentionCall& x) {
    constexpr int most = size == 4 || D > 128 ? 8 : 16;
    return rows_of(x) < most ? rows_of(x) : most;
  }
  // Shared memory after the rings, in this order:
  // - for each stream, the visible keys of each query, or P in f32
  // - the table of entries
  // - the block's items, and one more item per stream
  // - the short tiles
  // - the streams' results: c and π of each query, and G
  static constexpr int row = D + 4;  // elements per row of G, padded against bank conflicts
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
// Whether a GPU that this code is compiled for may launch the shape. A GPU with 227 KiB of shared memory per
// block always uses the maximum number of streams. nvcc can then skip the other shapes, which saves minutes.
#if defined(__CUDA_ARCH__)
template <class At>
constexpr bool may_be_launched = arch < 900 || arch >= 1200 || At::streams == most_streams(At::D);
#else
template <class At>
constexpr bool may_be_launched = true;
#endif
static_assert(TileShape<2, 128, 16, 8>::bytes(16) <= 227 << 10, "the largest shape");

// The number of rows that determines the number of streams and whether a block has enough shared memory. For
// a paged cache it must be constant, because the number of streams affects rounding.
inline int rows_of_shape(const AttentionCall& x) {
  return x.table ? most_rows(x) : rows_of(x);
}

// Calls f with the shape for a call. It has eight streams, or four for head sizes above 128. If a block has
// too little shared memory, it has half as many. A block has a multiprocessor to itself.
template <int size, int D, int rows, class F>
auto with_streams(const AttentionCall& x, const Gpu& gpu, F&& f) {
  constexpr int most = most_streams(D);
  using Large = TileShape<size, D, rows, most>;
  return Large::bytes(rows_of_shape(x)) <= gpu.shared_per_block ? f(Large())
                                                                : f(TileShape<size, D, rows, most / 2>());
}
// Calls f with the shape for a call whose elements have `size` bytes.
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

// Shape of the latent kernel. Tiles have 64 keys. Each pair of warps multiplies 16 keys.
struct LatentShape {
  static constexpr int D = 576, D_v = 512, rows = 16, keys = 64, stages = 2, warps = 8, threads = 32 * warps,
                       streams = 1, step = keys, groups = keys / 16;
  static constexpr int tile = keys * D * 2;
  // After the tiles: P, row data that the warps share, and the table of entries.
  static constexpr int p = stages * tile, of_rows = p + rows * keys * 2,
                       entries = of_rows + (2 * groups + 1 + 2) * rows * 4,
                       bytes = entries + (most_entries + 1) * 3 * int(sizeof(int));
};

// Named barriers of a block: the streams' results are ready; stream n may store further results.
enum Barrier { results_ready = 1, may_store = 2 };

}  // namespace tg::cuda::attention::decoding
