// The GEMMs of attention in bf16, on tiles if the processor has them. Each GEMM packs its operands into the
// order of tiles. Packing costs little compared with the exponentials. P and z_A are stored in f32 and
// rounded to bf16 as operands. Sums are f32.
#pragma once

#include <type_traits>

#include "backends/cpu/kernels/amx.h"
#include "backends/cpu/kernels/attention/attention.h"
#include "backends/cpu/kernels/gemm_tiles.h"

namespace tg::cpu::TG_ISA {

#if defined(TG_TILE_UNIT)  // tests define a model of tiles
using TileUnit = TG_TILE_UNIT;
inline bool has_tile_unit() {
  return true;
}
#elif defined(TG_BF16_TILES)
using TileUnit = Amx;
inline bool has_tile_unit() {
  return bf16_unit() == Bf16Unit::tiles;
}
#else
using TileUnit = void;
inline bool has_tile_unit() {
  return false;
}
#endif
template <class C>
inline constexpr bool may_use_tiles = std::is_same_v<C, float> && !std::is_void_v<TileUnit>;

// Whether the GEMMs of a call run on tiles. `queries` is the number of queries per tile. With fewer queries,
// a query tile has several heads, whose rows do not form one matrix. In packed sequences, rows outside of all
// sequences may contain NaN. Only the vector code skips such rows. The result does not depend on the number
// of batch entries.
template <class C>
bool is_on_tiles(const AttentionCall& x, i64 queries) {
  if constexpr (!may_use_tiles<C>) return false;
  return x.type == DType::bf16 && has_tile_unit() && !x.cu_q && x.L >= 16 && x.T >= 16 &&
         (x.L >= queries || x.H == x.Hk);
}

// Element (i, j) is data[i·row + j·col]. One of the strides is 1.
template <class S>
struct Strided {
  const S* data;
  i64 row, col;
  Strided transposed() const { return {data, col, row}; }
};

inline i64 blocks_along(i64 n) {
  return ceil_div(n, block_side);
}
// Returns the number of scratch floats for GEMMs. Each of m, n and k is at most `rows`, the number of keys or
// queries, or at most `size`.
inline i64 tile_product_floats(i64 rows, i64 size) {
  const i64 longest = blocks_along(rows), across = blocks_along(size);
  return (2 + at_least(longest, across) + across * longest) * block_floats;
}

template <class Unit>
void pack_left_block(Strided<bfloat16> a, i64 rows, i64 depth, float* to) {
  pack_block<TileOrder::along_k>(a.data, a.row, a.col, rows, depth, to);
}
template <class Unit>
void pack_left_block(Strided<float> a, i64 rows, i64 depth, float* to) {
  constexpr int S = block_side, W = lanes<F32>;
  const bool along = a.col == 1;
  float whole[S * S];  // lines in place: along k, or across it
  if (rows < S || depth < S) {
    const i64 lines = at_most(S, along ? rows : depth), each = at_most(S, along ? depth : rows);
    __builtin_memset(whole, 0, sizeof whole);
    for (i64 l = 0; l < lines; ++l)
      __builtin_memcpy(whole + l * S, a.data + l * (along ? a.row : a.col),
                       static_cast<std::size_t>(each) * sizeof(float));
    a.data = whole;
    (along ? a.row : a.col) = S;
  }
  if (along) {
    for (int r = 0; r < S; ++r) Unit::round_row(reinterpret_cast<bfloat16*>(to + r * 16), a.data + r * a.row);
    return;
  }
  for (int r = 0; r < S; r += W)
    for (int p = 0; p < 16; p += W) {
      F32 v[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) {
        const float* first = a.data + 2 * (p + i) * a.col + r;
        v[i] = Unit::round_pairs(load(first), load(first + a.col));
      }
      transpose_block(v);
#pragma GCC unroll 16
      for (int i = 0; i < W; ++i) store(to + (r + i) * 16 + p, v[i]);
    }
}

// C[m×width] = A[m×k]·B[k×n], added to C if `adds` is true. `width` is n rounded up to whole vectors. B is 0
// in columns n and later. `work` has the size that tile_product_floats returns.
template <class Unit, class A>
void tile_product(i64 m, i64 n, i64 k, Strided<A> a, Strided<bfloat16> b, float* c, i64 ld, i64 width,
                  bool adds, float* work) {
  constexpr i64 S = block_side;
  const i64 steps = blocks_along(k), panels = blocks_along(width);
  float *const block = work, *const left = block + 2 * block_floats,
               *const right = left + steps * block_floats;
  for (i64 j = 0; j < panels; ++j)
    for (i64 s = 0; s < steps; ++s)
      pack_block<TileOrder::across_k>(b.data + s * S * b.row + j * S * b.col, b.col, b.row, n - j * S,
                                      k - s * S, right + (j * steps + s) * block_floats);
  for (i64 i = 0; i < m; i += S) {
    for (i64 s = 0; s < steps; ++s)
      pack_left_block<Unit>(Strided<A>{a.data + i * a.row + s * S * a.col, a.row, a.col}, m - i, k - s * S,
                            left + s * block_floats);
    for (i64 j = 0; j < panels; ++j) {
      const i64 rows = at_most(S, m - i), columns = at_most(S, width - j * S);
      float* const at = c + i * ld + j * S;
      const float* const packed = right + j * steps * block_floats;
      const auto multiply = block_multiplier<Unit>(rows, columns);
      if (rows % 16 == 0 && columns % 16 == 0) {
        multiply(steps, left, packed, adds ? at : nullptr, at, ld, nullptr, 0);
        continue;
      }
      for (i64 r = 0; r < S; ++r)
        for (i64 e = 0; e < S; ++e) block[r * S + e] = adds && r < rows && e < columns ? at[r * ld + e] : 0;
      multiply(steps, left, packed, block, block, S, nullptr, 0);
      for (i64 r = 0; r < rows; ++r)
        for (i64 e = 0; e < columns; ++e) at[r * ld + e] = block[r * S + e];
    }
  }
}

// Multiplies on tiles if `work` is not null. Otherwise does nothing. Returns whether it has multiplied.
template <class C, class A>
bool multiply_on_tiles(float* work, i64 m, i64 n, i64 k, Strided<A> a, Strided<bfloat16> b, C* c, i64 ld,
                       bool adds) {
  if constexpr (may_use_tiles<C>) {
    if (work)
      tile_product<TileUnit>(m, n, k, a, b, c, ld, ceil_div(n, Tile<C>::width) * Tile<C>::width, adds, work);
    return work != nullptr;
  }
  return false;
}

// Keeps tiles configured during its lifetime if `work` is not null.
template <class Unit>
struct TilesInUse {
  explicit TilesInUse(const float* work) : used(work != nullptr) {
    if constexpr (!std::is_void_v<Unit>)
      if (used) Unit::configure();
  }
  ~TilesInUse() {
    if constexpr (!std::is_void_v<Unit>)
      if (used) Unit::release();
  }
  TilesInUse(const TilesInUse&) = delete;
  const bool used;
};

}  // namespace tg::cpu::TG_ISA
