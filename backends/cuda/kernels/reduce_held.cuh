// Reductions of rows that are aligned and fit in registers. A team of threads holds a row. It starts to load
// the next row before it processes the current row. Blocks iterate over the rows. There are as many blocks as
// the GPU can run at the same time.
//
// A reduction R that supports this has of_row(team, row, flip) → State. All threads of the team receive the
// same State.
#pragma once

#include "backends/cuda/kernels/reduce.cuh"
#include "backends/cuda/kernels/rows.cuh"

namespace tg::cuda {

// Rows are not written. More of a row can therefore be in flight than in kernels that write rows.
template <class S>
using ReducedRow = Held<S, 1, sizeof(S) < 8 ? 8 : 4>;

struct HeldReduction {
  RowLayout x, y;  // y: one result per row
  i64 n, rows;
  bool flip;  // the order of values is reversed
};

template <class R, class S>
__global__ void __launch_bounds__(most_threads)
    reduce_held_rows(const __grid_constant__ HeldReduction a, Results<R> out) {
  begin_early();
  using Row = ReducedRow<S>;
  Team<false> team(false);
  const i64 step = i64(gridDim.x) * blockDim.y;
  const auto load = [&](i64 r) { return load_row<S, Row>(team, r, a.rows, a.n, a.x); };
  auto next = load(i64(blockIdx.x) * blockDim.y + team.index);
  for (i64 first = i64(blockIdx.x) * blockDim.y; first < a.rows; first += step) {
    const i64 r = first + team.index;
    const Row row = next;
    next = load(r + step);
    const auto total = R::of_row(team, row, a.flip);
    if (team.rank == 0 && r < a.rows) out.put(a.y.template offset<true>(r), total);
  }
}

// Whether a plan reduces unsplit rows of adjacent elements. If so, sets x and y.
bool is_of_rows(const ReducePlan& p, const void* data, HeldReduction& a);

// Whether rows fit in registers and threads use at least half of their slots. If so, sets x and y.
template <class S>
bool is_held(const ReducePlan& p, const void* data, HeldReduction& a) {
  using Row = ReducedRow<S>;
  return is_of_rows(p, data, a) && fits<S, Row>(a.n, a.rows, {&a.x}) && a.n >= 16 * Row::per_thread;
}

// If rows cannot be held in registers, returns false and does nothing.
template <class R, class S>
bool reduce_held(const Stream& s, const ReducePlan& p, const void* data, const Results<R>& out,
                 bool flip = false) {
  using Row = ReducedRow<S>;
  HeldReduction a{};
  if (!is_held<S>(p, data, a)) return false;
  a.flip = flip;
  launch_rows(s, Teams(a.n, Row::per_thread, false), a.rows, reduce_held_rows<R, S>, a, out);
  return true;
}

}  // namespace tg::cuda
