// Tiles of 16-bit numbers in shared memory as bulk copies write them and wgmma reads them: columns in blocks
// of 64, a block's rows 128 bytes apart, with their 16-byte pieces permuted by the row (the 128-byte
// swizzle).
#pragma once

#include "backends/cuda/tile/wgmma_sm90.cuh"

namespace tg::cuda::tile {

using ptx::u32, ptx::u64, ptx::shared_address;

// [Rows, Columns], Rows a multiple of 8; begins at a multiple of 1024 bytes.
template <int Rows, int Columns>
struct SwizzledTile {
  static constexpr int rows = Rows, columns = Columns, blocks = (Columns + 63) / 64, block = Rows * 128,
                       bytes = blocks * block;
  u32 base;

  __device__ static constexpr int offset(int row, int piece) {
    return piece / 8 * block + row * 128 + (piece % 8 ^ row % 8) * 16;
  }
  // The nth of `count` equal parts of the columns.
  template <int count>
  __device__ __forceinline__ SwizzledTile<Rows, Columns / count> part(int n) const {
    static_assert(Columns % (64 * count) == 0);
    return {base + n * (blocks / count) * block};
  }
  // For wgmma, step k of 16 numbers of each of the rows from row0 on, a multiple of 8.
  __device__ __forceinline__ u64 along_columns(int row0, int k) const {
    return descriptor(base + row0 * 128, k / 4 * block + k % 4 * 32, 1);
  }
  // Step k of 16 rows, of the columns from column0 on, a multiple of 64: an operand that is transposed.
  __device__ __forceinline__ u64 along_rows(int column0, int k) const {
    return descriptor(base + column0 / 64 * block, k * 2048, block / 16);
  }

 private:
  // Address, distance of blocks (of a transposed operand), distance of 8 rows: in units of 16 bytes; and the
  // swizzle. Of the address only the 18 bits within a block: those above say which block of a cluster it is.
  // The step's bytes are added after all else, so that a step is one addition: there is nothing to carry.
  __device__ __forceinline__ static u64 descriptor(u32 address, u32 bytes, u32 between_blocks) {
    constexpr u32 upper = 1024 / 16 | 1u << 30;
    return u64{upper} << 32 | ((address % (1u << 18) / 16 | between_blocks << 16) + bytes / 16);
  }
};

}  // namespace tg::cuda::tile
