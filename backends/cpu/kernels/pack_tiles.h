// Copies of bf16 blocks into the order of AMX tiles. A tile has 16 rows with 16 pairs each, 1 KiB in total.
// The two elements of a pair are adjacent along k. A block has two tiles. It covers 32 rows of A or 32
// columns of B, and 32 elements along k.
#pragma once

#include "backends/cpu/kernels/pack.h"

namespace tg::cpu::TG_ISA {

constexpr int block_side = 32;
constexpr i64 block_floats = 512;  // a pair has the size of a float

// The order of pairs in a tile. A row of an A tile runs along k. A row of a B tile contains one pair for each
// of 16 columns.
enum class TileOrder { along_k, across_k };

// Packs a whole block whose element (r, p) is x[r·across + p·along]. One of the strides is 1.
template <TileOrder order>
void pack_whole_block(const bfloat16* x, i64 across, i64 along, float* to) {
  constexpr int W = lanes<F32>;
  if (along == 1 && order == TileOrder::along_k) {
    for (int r = 0; r < block_side; ++r) {
      const bfloat16* row = x + r * across;
      __builtin_prefetch(row + 4 * block_side);
      __builtin_memcpy(to + r * 16, row, 64);
    }
  } else if (along == 1) {
    for (int r = 0; r < block_side; r += W) {
      for (int i = 0; i < W; ++i) __builtin_prefetch(x + (r + i) * across + 4 * block_side);
      for (int p = 0; p < 16; p += W) {
        F32 v[W];
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) v[i] = Pairs::read(x + (r + i) * across + 2 * p);
        transpose_block(v);
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) store(to + r / 16 * 256 + (p + i) * 16 + r % 16, v[i]);
      }
    }
  } else if (order == TileOrder::across_k) {
    for (int p = 0; p < 16; ++p) {
      const bfloat16* first = x + 2 * p * along;
      __builtin_prefetch(first + block_side * along);
      __builtin_prefetch(first + (block_side + 1) * along);
      for (int r = 0; r < block_side; r += W)
        store(to + r / 16 * 256 + p * 16 + r % 16, pairs_of(first + r, first + along + r));
    }
  } else {
    for (int p = 0; p < 16; p += W) {
      for (int i = 0; i < 2 * W; ++i) __builtin_prefetch(x + (2 * p + i + block_side) * along);
      for (int r = 0; r < block_side; r += W) {
        F32 v[W];
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i)
          v[i] = pairs_of(x + 2 * (p + i) * along + r, x + (2 * (p + i) + 1) * along + r);
        transpose_block(v);
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) store(to + (r + i) * 16 + p, v[i]);
      }
    }
  }
}

// Packs an incomplete block with `rows` × `depth` elements and any strides. The missing elements become 0.
template <TileOrder order>
void pack_block(const bfloat16* x, i64 across, i64 along, i64 rows, i64 depth, float* to) {
  if (rows >= block_side && depth >= block_side && (across == 1 || along == 1))
    return pack_whole_block<order>(x, across, along, to);
  rows = rows < block_side ? rows : block_side;
  depth = depth < block_side ? depth : block_side;
  bfloat16 whole[block_side][block_side] = {};
  if (across == 1) {
    for (i64 p = 0; p < depth; ++p)
      __builtin_memcpy(whole[p], x + p * along, static_cast<std::size_t>(rows) * sizeof(bfloat16));
    return pack_whole_block<order>(whole[0], 1, block_side, to);
  }
  for (i64 r = 0; r < rows; ++r) {
    if (along == 1) {
      __builtin_memcpy(whole[r], x + r * across, static_cast<std::size_t>(depth) * sizeof(bfloat16));
    } else {
      for (i64 p = 0; p < depth; ++p) whole[r][p].bits = x[r * across + p * along].bits;
    }
  }
  pack_whole_block<order>(whole[0], block_side, 1, to);
}

}  // namespace tg::cpu::TG_ISA
