// softmax and log_softmax along one axis, and their gradients (formulas: ops/softmax.cpp). Rows that fit are
// held in registers; of longer ones maximum and sum are found in one pass (001 §3), and a second one writes.
#include "ops/softmax.h"

#include "backends/cuda/kernels/online.cuh"

namespace tg::cuda {

namespace {

struct Softmax {
  Rows x, z, y;  // backward: x is P (log P), y is z_x
  i64 n, rows;
  bool log_of, across;
};

// y = exp(x - c)/π, or x - c - log π, with c = max x and π = Σ exp(x - c)
template <class S, class Row>
__global__ void __launch_bounds__(most_threads) normalize(const __grid_constant__ Softmax a) {
  using C = compute_t<S>;
  const Team<!Row::held> team(a.across);
  const i64 per_block = team.across ? 32 : blockDim.y, step = gridDim.x * per_block;
  const auto load = [&](i64 r) { return load_row<S, Row>(team, a.x, r, a.rows, a.n); };
  auto next = load(blockIdx.x * per_block + team.index);
  for (i64 first = blockIdx.x * per_block; first < a.rows; first += step) {
    const i64 r = first + team.index;
    Row row(next);
    next = load(r + step);
    Normalizer<C> all;
    if constexpr (Row::held) {
      row.read([&](C x, i64, int) { all.max = x > all.max ? x : all.max; });
      all.max = team.max(all.max);
      const C shift = all.shift();
      if (a.log_of)
        row.read([&](C x, i64, int) { all.sum += exp(x - shift); });
      else
        row.update([&](C x, i64, int) {
          const C e = exp(x - shift);
          all.sum += e;
          return e;
        });
      all.sum = team.sum(all.sum);
    } else {
      row.read_packs([&](const auto& x) { all.take(x); });
      all.combine(team);
    }
    if (r >= a.rows) continue;
    S* out = a.y.at<S>(r);
    if (a.log_of) {
      const C top = all.max, rest = log(all.sum);
      row.write(out, a.y.step, [&](C x, i64, int) { return x - top - rest; });
    } else {
      const C scale = 1 / all.sum, shift = all.shift();
      row.write(out, a.y.step, [&](C x, i64, int) { return (Row::held ? x : exp(x - shift)) * scale; });
    }
  }
}

// z_x = P ⊛ (z - Σ P ⊛ z), of log P: z - P·Σ z
template <class S, class Row>
__global__ void __launch_bounds__(most_threads) differentiate(const __grid_constant__ Softmax a) {
  using C = compute_t<S>;
  const Team<!Row::held> team(a.across);
  const i64 per_block = team.across ? 32 : blockDim.y;
  for (i64 first = blockIdx.x * per_block; first < a.rows; first += gridDim.x * per_block) {
    const i64 r = first + team.index, n = r < a.rows ? a.n : 0;
    const S* const in[2] = {n > 0 ? a.x.at<S>(r) : nullptr, n > 0 ? a.z.at<S>(r) : nullptr};
    const i64 steps[2] = {a.x.step, a.z.step};
    Row row(team, n, in, steps);
    C total = 0;
    row.read([&](C y, C z, i64, int) { total += a.log_of ? z : z * y; });
    total = team.sum(total);
    if (n == 0) continue;
    row.write(a.y.at<S>(r), a.y.step,
              [&](C y, C z, i64, int) { return a.log_of ? z - exp(y) * total : y * (z - total); });
  }
}

// Elements of each operand that a thread holds of a row.
inline constexpr int slots = 16;
template <class S, int N>
using Held = HeldRow<S, N, pack_of<S>, slots / pack_of<S>>;

template <bool log_of>
void run(const Stream& s, const Call& c) {
  const int axis = static_cast<int>(c.attrs->as<SoftmaxAttrs>().axis);
  const Layout& l = c.in[0].layout;
  const bool backward = c.in.size() == 2;
  Softmax a{Rows(c.in[0], axis), Rows(c.in.back(), axis), Rows(c.out[0], axis), l.shape[axis]};
  if (l.numel() == 0) return;
  a.rows = l.numel() / a.n;
  a.log_of = log_of;
  with_float(c.in[0].dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    bool held = a.n <= i64{slots} * most_threads;
    for (const Rows* r : {&a.x, &a.z, &a.y}) held = held && takes_packs(*r, a.n, pack_of<S>, sizeof(S));
    a.across = !held && a.x.step != 1;
    const Teams teams(a.n, slots, a.across);
    const auto run = [&](auto kernel) { launch_rows(s, teams, a.rows, kernel, a); };
    if (backward)
      held ? run(differentiate<S, Held<S, 2>>) : run(differentiate<S, ReadRow<S, 2>>);
    else
      held ? run(normalize<S, Held<S, 1>>) : run(normalize<S, ReadRow<S, 1>>);
  });
}

}  // namespace

const Kernel softmax_kernel{&run<false>};
const Kernel log_softmax_kernel{&run<true>};
const Kernel softmax_backward_kernel{&run<false>};
const Kernel log_softmax_backward_kernel{&run<true>};

}  // namespace tg::cuda
