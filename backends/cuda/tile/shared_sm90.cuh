// Tiles of 16-bit elements in shared memory in the layout of bulk copies and wgmma. Columns are split into
// blocks of 64. The rows of a block have a stride of 128 bytes. The 16-byte pieces of a row are permuted by
// the row number (the 128-byte swizzle).
#pragma once

#include "backends/cuda/tile/wgmma_sm90.cuh"

namespace tg::cuda::tile {

using ptx::u32, ptx::u64, ptx::shared_address;

// A tile [Rows, Columns]. Rows is a multiple of 8. The tile is aligned to 1024 bytes.
template <int Rows, int Columns>
struct SwizzledTile {
  static constexpr int rows = Rows, columns = Columns, blocks = (Columns + 63) / 64, block = Rows * 128,
                       bytes = blocks * block;
  u32 base;

  __device__ static constexpr int offset(int row, int piece) {
    return piece / 8 * block + row * 128 + (piece % 8 ^ row % 8) * 16;
  }
  // Part n of `count` equal parts of the columns.
  template <int count>
  __device__ __forceinline__ SwizzledTile<Rows, Columns / count> part(int n) const {
    static_assert(Columns % (64 * count) == 0);
    return {base + n * (blocks / count) * block};
  }
  // Descriptor for wgmma: step k of 16 elements, for rows starting at row0 (a multiple of 8).
  __device__ __forceinline__ u64 along_columns(int row0, int k) const {
    return descriptor(base + row0 * 128, k / 4 * block + k % 4 * 32, 1);
  }
  // Descriptor for a transposed operand: step k of 16 rows, for columns starting at column0 (a multiple of
  // 64).
  __device__ __forceinline__ u64 along_rows(int column0, int k) const {
    return descriptor(base + column0 / 64 * block, k * 2048, block / 16);
  }

 private:
  // Contains the swizzle, the address, the block stride of a transposed operand, and the stride of 8 rows.
  // The last three are in units of 16 bytes. Only the lowest 18 bits of the address are used, because the
  // upper bits select a block of the cluster. The step's bytes are added last, so that a step is one addition
  // without a carry.
  __device__ __forceinline__ static u64 descriptor(u32 address, u32 bytes, u32 between_blocks) {
    constexpr u32 upper = 1024 / 16 | 1u << 30;
    return u64{upper} << 32 | ((address % (1u << 18) / 16 | between_blocks << 16) + bytes / 16);
  }
};

}  // namespace tg::cuda::tile
