// GEMM of bf16 matrices on a unit with eight tiles of 16 rows × 64 bytes. The unit is a parameter: gemm.cpp
// uses AMX, and the tests use a plain model. Unit::multiply<C, A, B>() adds the product of tile A (16
// rows × 16 pairs of bf16 along k) and tile B (16 pairs × 16 columns) to tile C (16×16 f32).
//
// A 32×32 block of C stays in four tiles during a chunk of k. A panel is 32 columns of B, and a group is 32
// rows of A. Each panel is multiplied by all groups of a row block, and both operands are in L2. Between
// chunks the accumulators are stored in f32. Each element is therefore summed over k in the same order for
// every division of the work.
#pragma once

#include "backends/cpu/kernels/gemm_parts.h"
#include "backends/cpu/kernels/pack_tiles.h"

namespace tg::cpu::TG_ISA {

struct TilePlan {
  i64 batches;
  i64 groups, panels, steps;      // m, n, k in units of 32
  i64 chunk, depth;               // maximum steps in a chunk; maximum steps of A packed at a time
  i64 pass;                       // panels of B packed at a time
  i64 row_blocks, column_blocks;  // number of row blocks; of column blocks in a pass
  bool shared_b;                  // all threads pack B together; otherwise each its columns

  i64 group_start(i64 block) const { return block * groups / row_blocks; }
  i64 panel_start(i64 first, i64 count, i64 block) const { return first + block * count / column_blocks; }
  i64 most_groups() const { return ceil_div(groups, row_blocks); }
  i64 most_panels() const { return ceil_div(pass, column_blocks); }
  // Scratch, in floats.
  i64 a_floats() const { return most_groups() * depth * block_floats; }
  i64 sum_floats() const {
    return steps <= chunk ? 0 : most_groups() * (depth < steps ? most_panels() : 1) * 2 * block_floats;
  }
  i64 b_floats() const { return (shared_b ? pass : most_panels()) * steps * block_floats; }
};

// Chooses a division of the work. Compares rough estimates of cycles.
inline TilePlan plan_tiles(const Gemm& g, int threads) {
  // A chunk contains 64 KiB of a panel and 64 KiB of a group. L2 provides these fast enough.
  constexpr i64 chunk = piece_size(32, 2);
  constexpr i64 deepest = piece_size(64, 4);                                   // steps of A packed at a time
  constexpr i64 a_blocks = piece_size(512, 8);                                 // blocks of 2 KiB, half of L2
  constexpr i64 pass_blocks = piece_size(4096, 32);                            // blocks of 2 KiB
  constexpr double pack = 150, finish = 300, multiply = 80, barriers = 10000;  // cycles

  TilePlan p;
  p.batches = batches_of(g);
  p.groups = ceil_div(g.m, block_side);
  p.panels = ceil_div(g.n, block_side);
  p.steps = ceil_div(g.k, block_side);
  p.chunk = chunk;
  p.depth = ceil_div(p.steps, ceil_div(p.steps, deepest));
  p.pass = at_most(p.panels, at_least(8, pass_blocks / p.steps));
  const i64 passes = ceil_div(p.panels, p.pass);

  // Cores are not equally fast: the last block may begin when all others have finished.
  const auto time_of = [&](i64 blocks, double block) {
    return (static_cast<double>(blocks) / threads + (threads > 1 ? 1 : 0)) * block;
  };
  double best = -1;
  const auto consider = [&](i64 row_blocks, i64 column_blocks, bool shared) {
    const double rows = static_cast<double>(ceil_div(p.groups, row_blocks)),
                 columns = static_cast<double>(ceil_div(p.pass, column_blocks)),
                 steps = static_cast<double>(p.steps);
    double block = rows * steps * pack + rows * columns * (steps * multiply + finish), all;
    const i64 blocks = row_blocks * column_blocks;
    if (shared) {
      all = static_cast<double>(p.batches * passes) *
            (time_of(blocks, block) + static_cast<double>(ceil_div(p.pass, threads)) * steps * pack +
             (threads > 1 ? barriers : 0));
    } else {
      block += columns * steps * pack;
      all = time_of(p.batches * passes * blocks, block);
    }
    if (best >= 0 && all >= best) return;
    best = all;
    p.row_blocks = row_blocks, p.column_blocks = column_blocks, p.shared_b = shared;
  };
  const i64 most = at_most(32, at_least(1, a_blocks / p.depth));  // groups of a row block
  for (i64 row_blocks = ceil_div(p.groups, most);; row_blocks = at_most(p.groups, 2 * row_blocks)) {
    for (i64 column_blocks = 1;; column_blocks = at_most(p.pass, 2 * column_blocks)) {
      consider(row_blocks, column_blocks, false);
      consider(row_blocks, column_blocks, true);
      if (column_blocks >= at_most(p.pass, 8 * threads)) break;
    }
    if (row_blocks >= at_most(p.groups, 8 * threads)) break;
  }
  return p;
}

inline Scratch tiles_scratch(const Gemm& g, int threads) {
  const TilePlan p = plan_tiles(g, threads);
  const i64 own = 2 * block_floats + p.a_floats() + p.sum_floats() + (p.shared_b ? 0 : p.b_floats());
  return {static_cast<std::size_t>(own) * sizeof(float),
          static_cast<std::size_t>(p.shared_b ? p.b_floats() : 0) * sizeof(float)};
}

// Calls f(i, s) for i < lines and s < steps. If the steps of a line are consecutive in memory, the inner loop
// is over steps. Otherwise the elements of one step are consecutive, and the inner loop is over lines.
template <class F>
void in_order_of(bool along, i64 lines, i64 steps, F f) {
  if (along) {
    for (i64 i = 0; i < lines; ++i)
      for (i64 s = 0; s < steps; ++s) f(i, s);
  } else {
    for (i64 s = 0; s < steps; ++s)
      for (i64 i = 0; i < lines; ++i) f(i, s);
  }
}

// to = from + A·B for a block of C [32][32] with a row stride of `ld` floats. Only R×C tiles of the block are
// computed. A null `from` means 0. Each step prefetches `ahead` bytes into L2, starting at `next`.
template <class Unit, int R, int C>
void multiply_block(i64 steps, const float* a, const float* b, const float* from, float* to, i64 ld,
                    const char* next, i64 ahead) {
  constexpr i64 line = 64;
  const i64 row = ld * static_cast<i64>(sizeof(float));
  // Calls f(number of the tile as a constant, offset of the tile) for each tile of C.
  const auto each_tile = [ld](auto f) __attribute__((always_inline)) {
    each_constant<2 * R>([&](auto i) {
      constexpr i64 row = i / 2 * 16, column = i % 2 * 16;
      if constexpr (column < C * 16) f(i, row * ld + column);
    });
  };
  if (from)
    each_tile([&](auto i, i64 at) { Unit::template load<i>(from + at, row); });
  else
    each_tile([](auto i, i64) { Unit::template zero<i>(); });
  for (i64 s = 0; s < steps; ++s, a += block_floats, b += block_floats) {
    for (i64 i = 0; i < ahead; i += line) __builtin_prefetch(next + s * 4 * block_floats + i, 0, 2);
    Unit::template load<6>(b, line);
    Unit::template load<4>(a, line);
    Unit::template multiply<0, 4, 6>();
    if constexpr (C == 2) {
      Unit::template load<7>(b + 256, line);
      Unit::template multiply<1, 4, 7>();
    }
    if constexpr (R == 2) {
      Unit::template load<5>(a + 256, line);
      Unit::template multiply<2, 5, 6>();
    }
    if constexpr (R == 2 && C == 2) Unit::template multiply<3, 5, 7>();
  }
  each_tile([&](auto i, i64 at) { Unit::template store<i>(to + at, row); });
}

// Returns the instance of multiply_block for a block with this number of needed rows and columns.
template <class Unit>
auto block_multiplier(i64 rows, i64 columns) {
  const bool tall = rows > 16, wide = columns > 16;
  return tall ? (wide ? multiply_block<Unit, 2, 2> : multiply_block<Unit, 2, 1>)
              : (wide ? multiply_block<Unit, 1, 2> : multiply_block<Unit, 1, 1>);
}

// Writes block [32][32] + D, rounded to the storage type, to `rows` × `columns` elements of C, starting at
// (row, column).
template <class Unit>
void finish_block(const Gemm& g, i64 item, i64 row, i64 rows, i64 column, i64 columns, const float* block) {
  const bool plain = g.out_type == DType::bf16 && g.c.col == 1 && !g.d.data && columns == block_side;
  if (!plain) return write_out<float>(g, item, row, row + rows, column, column + columns, block, block_side);
  auto* c = const_cast<bfloat16*>(element<float, bfloat16>(g, g.c, item, row, column));
  for (i64 r = 0; r < rows; ++r, c += g.c.row) Unit::round_row(c, block + r * block_side);
}

// Computes the blocks of C for groups [i0, i1) and panels [j0, j1). `b` contains the packed panels, starting
// at j0. Each panel has [steps] blocks.
template <class Unit>
void tiles_block(const Gemm& g, const TilePlan& p, i64 item, i64 i0, i64 i1, i64 j0, i64 j1, const float* b,
                 float* scratch) {
  float* const out = scratch;
  float* const a = out + 2 * block_floats;  // [groups][steps] blocks
  float* const sums = a + p.a_floats();     // [panels, or 1][groups][32][32]
  const auto* from_a = element<float, bfloat16>(g, g.a, item, 0, 0);
  const i64 groups = i1 - i0, c_start = batch_offset(g, g.c, item);
  const i64 ahead = ceil_div(block_side, groups) * 64;  // bytes
  for (i64 s0 = 0; s0 < p.steps; s0 += p.depth) {
    const i64 steps = at_most(p.depth, p.steps - s0), chunks = ceil_div(steps, p.chunk);
    in_order_of(g.a.col == 1, groups, steps, [&](i64 i, i64 s) {
      const i64 row = (i0 + i) * block_side, k = (s0 + s) * block_side;
      pack_block<TileOrder::along_k>(from_a + row * g.a.row + k * g.a.col, g.a.row, g.a.col, g.m - row,
                                     g.k - k, a + (i * steps + s) * block_floats);
    });
    for (i64 j = j0; j < j1; ++j) {
      const i64 column = j * block_side, columns = at_most(block_side, g.n - column);
      for (i64 q = 0; q < chunks; ++q) {
        const i64 c0 = q * steps / chunks, c1 = (q + 1) * steps / chunks;
        const bool first = s0 + c0 == 0, last = s0 + c1 == p.steps;
        const float* bq = b + ((j - j0) * p.steps + s0 + c0) * block_floats;
        const char* next = reinterpret_cast<const char*>(bq + (c1 - c0) * block_floats);
        for (i64 i = 0; i < groups; ++i) {
          const i64 row = (i0 + i) * block_side, rows = at_most(block_side, g.m - row);
          float* sum = sums + ((p.depth < p.steps ? (j - j0) * groups : 0) + i) * 2 * block_floats;
          const auto multiply = block_multiplier<Unit>(rows, columns);
          if (last && g.c.col == 1)
            for (i64 r = 0; r < rows; ++r)
              __builtin_prefetch(
                  static_cast<const char*>(g.c.data) +
                      (c_start + (row + r) * g.c.row + column) * static_cast<i64>(size_of(g.out_type)),
                  1);
          multiply(c1 - c0, a + (i * steps + c0) * block_floats, bq, first ? nullptr : sum, last ? out : sum,
                   block_side, next + i * ahead, ahead);
          if (last) finish_block<Unit>(g, item, row, rows, column, columns, out);
        }
      }
    }
  }
}

template <class Unit>
void run_tiles(const Gemm& g, Worker& w) {
  const TilePlan p = plan_tiles(g, w.threads);
  float* const own = reinterpret_cast<float*>(w.scratch);
  const i64 passes = ceil_div(p.panels, p.pass), blocks = p.row_blocks * p.column_blocks;
  // Packs steps [s0, s1) of panels [j0, j1). `to` is the destination of panel j0.
  const auto pack_panels = [&](i64 item, i64 j0, i64 j1, i64 s0, i64 s1, float* to) {
    const auto* from = element<float, bfloat16>(g, g.b, item, 0, 0);
    in_order_of(g.b.row == 1, j1 - j0, s1 - s0, [&](i64 j, i64 s) {
      const i64 column = (j0 + j) * block_side, k = (s0 + s) * block_side;
      pack_block<TileOrder::across_k>(from + k * g.b.row + column * g.b.col, g.b.col, g.b.row, g.n - column,
                                      g.k - k, to + (j * p.steps + s0 + s) * block_floats);
    });
  };

  if (!p.shared_b) {
    float* const b = own + 2 * block_floats + p.a_floats() + p.sum_floats();
    Unit::configure();
    w.each(p.batches * passes * blocks, [&](i64 part) {
      const i64 item = part / (passes * blocks), start = part / blocks % passes * p.pass;
      const i64 j = part % blocks / p.row_blocks, i = part % p.row_blocks;
      const i64 count = at_most(p.pass, p.panels - start);
      const i64 j0 = p.panel_start(start, count, j), j1 = p.panel_start(start, count, j + 1);
      if (j0 == j1) return;
      pack_panels(item, j0, j1, 0, p.steps, b);
      tiles_block<Unit>(g, p, item, p.group_start(i), p.group_start(i + 1), j0, j1, b, own);
    });
    Unit::release();
    return;
  }

  float* const shared = reinterpret_cast<float*>(w.shared);
  for (i64 item = 0; item < p.batches; ++item)
    for (i64 start = 0; start < p.panels; start += p.pass) {
      const i64 count = at_most(p.pass, p.panels - start);
      if (item + start > 0 && !w.barrier()) return;  // the previous pass no longer uses its panels
      // A part reads whole consecutive lines: a few panels at one step, or one panel.
      const i64 together = g.b.row == 1 ? 1 : 8, parts = ceil_div(count, together);
      const i64 deep = g.b.row == 1 ? p.steps : 1;
      w.each(parts * ceil_div(p.steps, deep), [&](i64 part) {
        const i64 j0 = part % parts * together, j1 = at_most(count, j0 + together);
        const i64 s0 = part / parts * deep, s1 = at_most(p.steps, s0 + deep);
        pack_panels(item, start + j0, start + j1, s0, s1, shared + j0 * p.steps * block_floats);
      });
      if (!w.barrier()) return;
      Unit::configure();
      w.each(blocks, [&](i64 part) {
        const i64 i = part % p.row_blocks, j = part / p.row_blocks;
        const i64 j0 = p.panel_start(start, count, j), j1 = p.panel_start(start, count, j + 1);
        if (j0 == j1) return;
        tiles_block<Unit>(g, p, item, p.group_start(i), p.group_start(i + 1), j0, j1,
                          shared + (j0 - start) * p.steps * block_floats, own);
      });
      Unit::release();
    }
}

}  // namespace tg::cpu::TG_ISA
