// Where tiles come from on Hopper: boxes of a tensor map; or, where memory may hold anything beside the rows
// that count, those rows alone, copied by the warp.
#pragma once

#include <cuda.h>

#include "backends/cuda/attention/options.h"
#include "backends/cuda/tile/pipeline_sm90.cuh"
#include "backends/cuda/tile/shared_sm90.cuh"

namespace tg::cuda::attention {

// Starts filling a tile with rows of a head from row0 on, and columns from column0 on, by TMA, whose bytes
// count at the barrier; by one thread.
template <class Tile>
__device__ __forceinline__ void load_boxes(Tile to, const CUtensorMap& map, tile::u32 barrier, int row0,
                                           int head, int batch, int column0 = 0) {
#pragma unroll 1
  for (int n = 0; n < Tile::blocks; ++n)
    ptx::tma_load(to.base + n * Tile::block, &map, barrier, column0 + n * 64, row0, head, batch);
}
// The same by the two blocks of a cluster for both: each fetches half of the columns.
template <class Tile>
__device__ __forceinline__ void load_half_for_both(Tile to, const CUtensorMap& map, tile::u32 barrier,
                                                   int row0, int head, int batch) {
  constexpr int half = Tile::blocks / 2;
  const int first = ptx::cluster_rank() * half;
#pragma unroll 1
  for (int n = first; n < first + half; ++n)
    ptx::tma_load_for_both(to.base + n * Tile::block, &map, barrier, n * 64, row0, head, batch);
}
// load_boxes() by copies of a warp, with zeros for rows that are not valid, whatever memory holds there.
// `data` is the head's.
template <class S, class Tile>
__device__ __forceinline__ void copy_rows(Tile to, const S* data, long long stride, int row0, KeyRange valid,
                                          int size) {
  constexpr int pieces = Tile::blocks * 8;
#pragma unroll 1
  for (int n = threadIdx.x % 32; n < Tile::rows * pieces; n += 32) {
    const int row = n / pieces, piece = n % pieces;
    uint4 words{0, 0, 0, 0};
    if (row0 + row >= valid.from && row0 + row < valid.to && piece * 8 < size)
      words = *reinterpret_cast<const uint4*>(data + (row0 + row) * stride + piece * 8);
    ptx::st_shared_v4(to.base + Tile::offset(row, piece), words);
  }
  ptx::fence_async();
  __syncwarp();
}

}  // namespace tg::cuda::attention
