// cross_entropy, forward and backward (formulas: ops/cross_entropy.cpp). Logits are read once. ξ is computed
// by the online normalizer [Ye, Online Softmax §3]. No tensor of the logits' size is saved.
#include "ops/cross_entropy.h"

#include "backends/cuda/kernels/online.cuh"

namespace tg::cuda {

namespace {

struct CrossEntropy {
  RowLayout x, targets, top, log_sum, z, z_x;
  bool wide;                     // targets are i64, otherwise i32
  void *loss, *tops, *log_sums;  // [rows] of the compute type: results of the forward, with c and log π
  i64 n, rows, ignore_index;
  double hit, share;  // 1 - ε and ε/V
  bool across;
};

// A row's class as stored, i64 or i32. It is not widened here, because that would wait for the load.
struct Given {
  unsigned low, high;

  __device__ __forceinline__ static Given load(const void* data, bool wide, i64 at) {
    if (!wide) return {static_cast<const unsigned*>(data)[at], 0};
    const uint2 both = static_cast<const uint2*>(data)[at];
    return {both.x, both.y};
  }
  __device__ __forceinline__ i64 value(bool wide) const {
    return wide ? static_cast<i64>(static_cast<unsigned long long>(high) << 32 | low) : static_cast<int>(low);
  }
};
// Returns the row's class. Returns -1 if the row is ignored or does not exist, or if its class is not between
// 0 and n − 1. If the class is out of range, one thread records a fault.
template <class T>
__device__ __forceinline__ i64 class_of(const CrossEntropy& a, const T& team, i64 row, const Given& given,
                                        const Faults& faults) {
  const i64 value = given.value(a.wide);
  if (row >= a.rows || value == a.ignore_index) return -1;
  if (value >= 0 && value < a.n) return value;
  if (team.rank == 0) faults.check_index(value, a.n, row);
  return -1;
}

// A row and its class, loaded while the previous row is processed. The class is loaded only if `with_class`.
template <class S, class Row>
struct Ahead {
  Row row;
  Given given;

  template <class T>
  __device__ __forceinline__ static Ahead load(const CrossEntropy& a, const T& team, i64 r, bool with_class) {
    return {load_row<S, Row>(team, r, a.rows, a.n, a.x),
            with_class && r < a.rows ? Given::load(a.targets.data, a.wide, a.targets.offset<Row::held>(r))
                                     : Given{}};
  }
};

// loss = ξ - (1 - ε)·x_t - ε·mean(x) = log π + (1 - ε)·(c - x_t) + ε·mean(c - x)
template <class S, class Row>
__global__ void __launch_bounds__(most_threads)
    losses(const __grid_constant__ CrossEntropy a, Faults faults) {
  begin_early();
  using C = compute_t<S>;
  Team<!Row::held> team(a.across);
  const C hit = static_cast<C>(a.hit), share = static_cast<C>(a.share);
  const bool writes = team.rank == 0;
  const i64 per_block = team.across ? 32 : blockDim.y, step = gridDim.x * per_block;
  auto next = Ahead<S, Row>::load(a, team, blockIdx.x * per_block + team.index, writes);
  for (i64 first = blockIdx.x * per_block; first < a.rows; first += step) {
    const i64 r = first + team.index, t = writes ? class_of(a, team, r, next.given, faults) : -1;
    const S own = t >= 0 ? a.x.at<S, Row::held>(r)[t * a.x.step] : S();  // x_t, for the thread that writes
    const Row row = next.row;
    next = Ahead<S, Row>::load(a, team, r + step, writes);
    const Normalizer<C> all = normalizer_of(team, row);
    C sum = 0;
    if (share != 0) sum = team.sum(row.sum([&](C x, auto) { return all.max - x; }));
    if (!writes || r >= a.rows) continue;
    const C top = t >= 0 ? all.max : C(0), log_sum = t >= 0 ? log(all.sum) : C(0);
    C loss = t >= 0 ? log_sum + hit * (top - widen(own)) : C(0);
    if (share != 0 && t >= 0) loss += share * sum;
    static_cast<C*>(a.loss)[r] = loss;
    static_cast<C*>(a.tops)[r] = top, static_cast<C*>(a.log_sums)[r] = log_sum;
  }
}

// z_x = z·(exp(x - ξ) - (1 - ε)·[· = t] - ε/V)
template <class S, class Row>
__global__ void __launch_bounds__(most_threads)
    logit_gradients(const __grid_constant__ CrossEntropy a, Faults faults) {
  begin_early();
  using C = compute_t<S>;
  const Team<!Row::held> team(a.across);
  const C share = static_cast<C>(a.share);
  const i64 per_block = team.across ? 32 : blockDim.y, step = gridDim.x * per_block;
  const auto scalars = [&](i64 r, C& z, C& top, C& log_sum) {
    if (r >= a.rows) return;
    z = *a.z.at<C, Row::held>(r);
    top = *a.top.at<C, Row::held>(r), log_sum = *a.log_sum.at<C, Row::held>(r);
  };
  i64 r = blockIdx.x * per_block + team.index;
  auto next = Ahead<S, Row>::load(a, team, r, true);
  C next_z = 0, next_top = 0, next_log_sum = 0;
  scalars(r, next_z, next_top, next_log_sum);
  for (; r < a.rows; r += step) {
    const i64 t = class_of(a, team, r, next.given, faults);
    const C z = t >= 0 ? next_z : C(0), top = next_top, log_sum = next_log_sum,
            less = z * static_cast<C>(a.hit);
    const Row row = next.row;
    next = Ahead<S, Row>::load(a, team, r + step, true);
    scalars(r + step, next_z, next_top, next_log_sum);
    S* out = a.z_x.at<S, Row::held>(r);
    const auto slope = [&](C x) { return z * (exp_below((x - top) - log_sum) - share); };
    if (t < 0)
      row.write(out, a.z_x.step, [](C, auto) { return C(0); });
    else if constexpr (Row::held)
      row.write_packs(out, [&](C(&x)[Row::V], int p) {
        const int own = static_cast<int>(t) - p * Row::V;  // t's index in the pack
#pragma unroll
        for (int e = 0; e < Row::V; ++e) x[e] = slope(x[e]) - (e == own ? less : C(0));
      });
    else
      row.write(out, a.z_x.step, [&](C x, i64 i) { return slope(x) - (i == t ? less : C(0)); });
  }
}

CrossEntropy operands(const Call& c) {
  const auto& attrs = c.attrs->as<CrossEntropyAttrs>();
  CrossEntropy a{};
  const Layout& x = c.in[0].layout;
  a.x = RowLayout(c.in[0], x.rank() - 1), a.targets = RowLayout(c.in[1], -1);
  a.wide = c.in[1].dtype == DType::i64;
  a.n = x.shape.back(), a.rows = c.in[1].layout.numel(), a.ignore_index = attrs.ignore_index;
  a.hit = 1 - attrs.smoothing, a.share = attrs.smoothing / static_cast<double>(a.n);
  return a;
}

// Calls f with a row type. Rows are held in registers if they are short enough and aligned.
template <class F>
void with_row(const Call& c, CrossEntropy& a, std::initializer_list<const RowLayout*> rows,
              std::initializer_list<const RowLayout*> scalars, F&& f) {
  with_float(c.in[0].dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    using Row = Held<S, 1, sizeof(S) < 8 ? 8 : 4>;  // no rows are written: more loads can be in flight
    bool held = fits<S, Row>(a.n, a.rows, rows);
    for (const RowLayout* r : scalars) held = held && r->quick_to_find(a.rows);
    a.across = !held && a.x.step != 1;
    held ? f(type, static_cast<Row*>(nullptr)) : f(type, static_cast<ReadRow<S, 1>*>(nullptr));
  });
}

void cross_entropy_forward(const Stream& s, const Call& c) {
  CrossEntropy a = operands(c);
  a.loss = c.out[0].data, a.tops = c.out[1].data, a.log_sums = c.out[2].data;
  if (a.rows == 0) return;
  with_row(c, a, {&a.x}, {&a.targets}, [&](auto* type, auto* row) {
    using Row = pointee_t<decltype(row)>;
    launch_rows(s, Teams(a.n, Row::per_thread, a.across), a.rows, losses<pointee_t<decltype(type)>, Row>, a,
                s.faults);
  });
}

void cross_entropy_backward(const Stream& s, const Call& c) {
  CrossEntropy a = operands(c);
  a.z_x = RowLayout(c.out[0], c.out[0].layout.rank() - 1);
  a.top = RowLayout(c.in[2], -1), a.log_sum = RowLayout(c.in[3], -1), a.z = RowLayout(c.in[4], -1);
  if (a.rows == 0 || a.n == 0) return;
  with_row(c, a, {&a.x, &a.z_x}, {&a.targets, &a.top, &a.log_sum, &a.z}, [&](auto* type, auto* row) {
    using Row = pointee_t<decltype(row)>;
    launch_rows(s, Teams(a.n, Row::per_thread, a.across), a.rows,
                logit_gradients<pointee_t<decltype(type)>, Row>, a, s.faults);
  });
}

}  // namespace

extern const Kernel cross_entropy_kernel{&cross_entropy_forward};
extern const Kernel cross_entropy_backward_kernel{&cross_entropy_backward};

}  // namespace tg::cuda
