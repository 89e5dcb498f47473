// Where tiles come from on Hopper: boxes of a tensor map; or, where memory may hold anything beside the rows
// that count, those rows alone, copied by the warp.
#pragma once

#include <cuda.h>

#include "backends/cuda/attention/options.h"
#include "backends/cuda/tile/pipeline_sm90.cuh"
#include "backends/cuda/tile/shared_sm90.cuh"

namespace tg::cuda::attention {

// Fills a tile with rows of a head from row0 on by TMA, for a use of the ring's stage; by a warp.
template <class Tile, class Ring>
__device__ __forceinline__ void load_tile(Tile to, const CUtensorMap& map, Ring ring, tile::u32 use, int row0,
                                          int head, int batch) {
  if (threadIdx.x % 32 > 0) return;
  ring.expect(use, Tile::bytes);
#pragma unroll 1
  for (int n = 0; n < Tile::blocks; ++n)
    ptx::tma_load(to.base + n * Tile::block, &map, ring.full(use), n * 64, row0, head, batch);
}
// The same with zeros for rows that are not valid, whatever memory holds there. `data` is the head's.
template <class S, class Tile, class Ring>
__device__ __forceinline__ void copy_rows(Tile to, const S* data, long long stride, Ring ring, tile::u32 use,
                                          int row0, KeyRange valid, int size) {
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
  if (threadIdx.x % 32 == 0) ring.announce(use);
}

}  // namespace tg::cuda::attention
