// cross_entropy, forward and backward (formulas: ops/cross_entropy.cpp): logits are read once, ξ by the
// online normaliser (001 §3), and nothing of their size is kept.
#include "ops/cross_entropy.h"

#include "backends/cuda/kernels/online.cuh"

namespace tg::cuda {

namespace {

struct CrossEntropy {
  Rows x, targets, log_sum, z, z_x;
  DType index;            // of the targets
  void *loss, *log_sums;  // [rows], the compute type: the forward's results
  i64 n, rows, ignore_index;
  double hit, share;  // 1 - ε and ε/V
  bool across;
};

// The row's class as it is given; the ignored one beyond the last row.
__device__ __forceinline__ i64 given_class(const CrossEntropy& a, i64 row) {
  return row < a.rows ? load_as<i64>(a.targets.data, a.index, a.targets.offset(row)) : a.ignore_index;
}
// -1 if the row does not count.
template <class T>
__device__ __forceinline__ i64 class_of(const CrossEntropy& a, const T& team, i64 row, i64 given,
                                        const Faults& faults) {
  if (given == a.ignore_index) return -1;
  if (given >= 0 && given < a.n) return given;
  if (team.rank == 0) faults.check_index(given, a.n, row);
  return -1;
}

// A row and its class, on their way while the row before is worked on.
template <class S, class Row>
struct Ahead {
  typename Row::Loaded row;
  i64 given;

  template <class T>
  __device__ __forceinline__ static Ahead load(const CrossEntropy& a, const T& team, i64 r) {
    return {load_row<S, Row>(team, a.x, r, a.rows, a.n), given_class(a, r)};
  }
};

// loss = ξ - (1 - ε)·x_t - ε·mean(x)
template <class S, class Row>
__global__ void __launch_bounds__(most_threads)
    losses(const __grid_constant__ CrossEntropy a, Faults faults) {
  using C = compute_t<S>;
  const Team<!Row::held> team(a.across);
  const C hit = static_cast<C>(a.hit), share = static_cast<C>(a.share);
  const i64 per_block = team.across ? 32 : blockDim.y, step = gridDim.x * per_block;
  auto next = Ahead<S, Row>::load(a, team, blockIdx.x * per_block + team.index);
  for (i64 first = blockIdx.x * per_block; first < a.rows; first += step) {
    const i64 r = first + team.index, t = class_of(a, team, r, next.given, faults);
    Row row(next.row);
    next = Ahead<S, Row>::load(a, team, r + step);
    Normalizer<C> all;
    C sum = 0, own = 0;  // own: x_t, of the thread that writes
    bool writes = team.rank == 0;
    if constexpr (Row::held) {
      if (t >= 0) writes = false;
      row.read([&](C x, i64 i, int) {
        all.max = x > all.max ? x : all.max, sum += x;
        if (i == t) own = x, writes = true;
      });
      const C low = all.shift();
      row.read([&](C x, i64, int) { all.sum += exp(x - low); });
    } else {
      row.read_packs([&](const auto& x) {
        all.take(x);
        for (const C v : x) sum += v;
      });
      if (writes && t >= 0) own = widen(a.x.at<S>(r)[t * a.x.step]);
    }
    all.combine(team);
    if (share != 0) sum = team.sum(sum);
    if (!writes || r >= a.rows) continue;
    const C log_sum = t >= 0 ? all.log_sum() : C(0);
    C loss = t >= 0 ? log_sum - hit * own : C(0);
    if (share != 0 && t >= 0) loss -= share * sum;
    static_cast<C*>(a.loss)[r] = loss;
    static_cast<C*>(a.log_sums)[r] = log_sum;
  }
}

// z_x = z·(exp(x - ξ) - (1 - ε)·[· = t] - ε/V)
template <class S, class Row>
__global__ void __launch_bounds__(most_threads)
    differentiate(const __grid_constant__ CrossEntropy a, Faults faults) {
  using C = compute_t<S>;
  const Team<!Row::held> team(a.across);
  const C share = static_cast<C>(a.share);
  const i64 per_block = team.across ? 32 : blockDim.y, step = gridDim.x * per_block;
  const auto scalars = [&](i64 r, C& z, C& shift) {
    if (r < a.rows) z = *a.z.at<C>(r), shift = *a.log_sum.at<C>(r);
  };
  i64 r = blockIdx.x * per_block + team.index;
  auto next = Ahead<S, Row>::load(a, team, r);
  C next_z = 0, next_shift = 0;
  scalars(r, next_z, next_shift);
  for (; r < a.rows; r += step) {
    const i64 t = class_of(a, team, r, next.given, faults);
    const C z = t >= 0 ? next_z : C(0), shift = next_shift, less = z * static_cast<C>(a.hit);
    Row row(next.row);
    next = Ahead<S, Row>::load(a, team, r + step);
    scalars(r + step, next_z, next_shift);
    row.write(a.z_x.at<S>(r), a.z_x.step, [&](C x, i64 i, int) {
      if (t < 0) return C(0);
      const C v = z * (exp(x - shift) - share);
      return i == t ? v - less : v;
    });
  }
}

CrossEntropy operands(const Call& c) {
  const auto& attrs = c.attrs->as<CrossEntropyAttrs>();
  CrossEntropy a{};
  const Layout& x = c.in[0].layout;
  a.x = Rows(c.in[0], x.rank() - 1), a.targets = Rows(c.in[1], -1);
  a.index = c.in[1].dtype;
  a.n = x.shape.back(), a.rows = c.in[1].layout.numel(), a.ignore_index = attrs.ignore_index;
  a.hit = 1 - attrs.smoothing, a.share = attrs.smoothing / static_cast<double>(a.n);
  return a;
}

// Elements that a thread holds of a row.
inline constexpr int slots = 16;

// Calls f with a row type: held in registers where rows are short enough and lie well in memory.
template <class F>
void with_row(const Call& c, CrossEntropy& a, std::initializer_list<const Rows*> rows, F&& f) {
  with_float(c.in[0].dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    bool held = a.n <= i64{slots} * most_threads;
    for (const Rows* r : rows) held = held && takes_packs(*r, a.n, pack_of<S>, sizeof(S));
    a.across = !held && a.x.step != 1;
    const Teams teams(a.n, slots, a.across);
    held ? f(teams, type, static_cast<HeldRow<S, 1, pack_of<S>, slots / pack_of<S>>*>(nullptr))
         : f(teams, type, static_cast<ReadRow<S, 1>*>(nullptr));
  });
}

void forward(const Stream& s, const Call& c) {
  CrossEntropy a = operands(c);
  a.loss = c.out[0].data, a.log_sums = c.out[1].data;
  if (a.rows == 0) return;
  with_row(c, a, {&a.x}, [&](const Teams& teams, auto* type, auto* row) {
    launch_rows(s, teams, a.rows, losses<pointee_t<decltype(type)>, pointee_t<decltype(row)>>, a, s.faults);
  });
}

void backward(const Stream& s, const Call& c) {
  CrossEntropy a = operands(c);
  a.z_x = Rows(c.out[0], c.out[0].layout.rank() - 1);
  a.log_sum = Rows(c.in[2], -1), a.z = Rows(c.in[3], -1);
  if (a.rows == 0 || a.n == 0) return;
  with_row(c, a, {&a.x, &a.z_x}, [&](const Teams& teams, auto* type, auto* row) {
    launch_rows(s, teams, a.rows, differentiate<pointee_t<decltype(type)>, pointee_t<decltype(row)>>, a,
                s.faults);
  });
}

}  // namespace

const Kernel cross_entropy_kernel{&forward};
const Kernel cross_entropy_backward_kernel{&backward};

}  // namespace tg::cuda
