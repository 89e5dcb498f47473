// softmax and log_softmax along one axis, and their gradients (formulas: ops/softmax.cpp). Rows that fit are
// held in registers. For longer rows, one pass computes the maximum and the sum [Ye, Online Softmax §3], and
// a second pass writes the result.
#include "ops/index.h"

#include "backends/cuda/kernels/online.cuh"

namespace tg::cuda {

namespace {

struct Softmax {
  RowLayout x, z, y;  // backward: x is P (log P), y is z_x
  i64 n, rows;
  bool log_of, across;
};

// y = exp(x - c)/π, or x - c - log π, with c = max x and π = Σ exp(x - c)
template <class S, class Row>
__global__ void __launch_bounds__(most_threads) softmax_rows(const __grid_constant__ Softmax a) {
  begin_early();
  using C = compute_t<S>;
  Team<!Row::held> team(a.across);
  const i64 per_block = team.across ? 32 : blockDim.y, step = gridDim.x * per_block;
  const auto load = [&](i64 r) { return load_row<S, Row>(team, r, a.rows, a.n, a.x); };
  auto next = load(blockIdx.x * per_block + team.index);
  for (i64 first = blockIdx.x * per_block; first < a.rows; first += step) {
    const i64 r = first + team.index;
    const Row row = next;
    next = load(r + step);
    const Normalizer<C> all = normalizer_of(team, row);
    if (r >= a.rows) continue;
    S* out = a.y.at<S, Row::held>(r);
    if (a.log_of) {
      const C top = all.max, rest = log(all.sum);
      row.write(out, a.y.step, [&](C x, auto) { return x - top - rest; });
    } else {
      const C scale = 1 / all.sum, shift = all.shift();
      row.write(out, a.y.step, [&](C x, auto) { return exp_below(x - shift) * scale; });
    }
  }
}

// z_x = P ⊛ (z - Σ P ⊛ z) for softmax, z_x = z - P·Σ z for log_softmax
template <class S, class Row>
__global__ void __launch_bounds__(most_threads) softmax_gradients(const __grid_constant__ Softmax a) {
  begin_early();
  using C = compute_t<S>;
  Team<!Row::held> team(a.across);
  const i64 per_block = team.across ? 32 : blockDim.y, step = gridDim.x * per_block;
  const auto load = [&](i64 r) { return load_row<S, Row>(team, r, a.rows, a.n, a.x, a.z); };
  auto next = load(blockIdx.x * per_block + team.index);
  for (i64 first = blockIdx.x * per_block; first < a.rows; first += step) {
    const i64 r = first + team.index;
    const Row row = next;
    next = load(r + step);
    const C total = team.sum(row.sum([&](C y, C z, auto) { return a.log_of ? z : z * y; }));
    if (r >= a.rows) continue;
    row.write(a.y.at<S, Row::held>(r), a.y.step,
              [&](C y, C z, auto) { return a.log_of ? z - exp_below(y) * total : y * (z - total); });
  }
}

template <bool log_of>
void run_softmax(const Stream& s, const Call& c) {
  const int axis = static_cast<int>(c.attrs->as<SoftmaxAttrs>().axis);
  const Layout& l = c.in[0].layout;
  const bool backward = c.in.size() == 2;
  Softmax a{RowLayout(c.in[0], axis), RowLayout(c.in.back(), axis), RowLayout(c.out[0], axis), l.shape[axis]};
  if (l.numel() == 0) return;
  a.rows = l.numel() / a.n;
  a.log_of = log_of;
  with_float(c.in[0].dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    const bool held = backward ? fits<S, Held<S, 2>>(a.n, a.rows, {&a.x, &a.z, &a.y})
                               : fits<S, Held<S>>(a.n, a.rows, {&a.x, &a.y});
    a.across = !held && a.x.step != 1;
    const auto run = [&](int per_thread, auto kernel) {
      launch_rows(s, Teams(a.n, per_thread, a.across), a.rows, kernel, a);
    };
    if (backward)
      held ? run(Held<S, 2>::per_thread, softmax_gradients<S, Held<S, 2>>)
           : run(ReadRow<S, 2>::per_thread, softmax_gradients<S, ReadRow<S, 2>>);
    else
      held ? run(Held<S>::per_thread, softmax_rows<S, Held<S>>)
           : run(ReadRow<S, 1>::per_thread, softmax_rows<S, ReadRow<S, 1>>);
  });
}

}  // namespace

extern const Kernel softmax_kernel{&run_softmax<false>};
extern const Kernel log_softmax_kernel{&run_softmax<true>};
extern const Kernel softmax_backward_kernel{&run_softmax<false>};
extern const Kernel log_softmax_backward_kernel{&run_softmax<true>};

}  // namespace tg::cuda
