// sum, mean, sum_squares and prod: y = Σ x, Σ x / n, Σ x² and Π x over any axes.
#include "backends/cuda/kernels/reduce_held.cuh"
#include "backends/cuda/kernels/reductions.h"

namespace tg::cuda {

namespace {

template <class C>
struct Sum {
  using State = C;
  static __device__ __forceinline__ C init() { return 0; }
  static __device__ __forceinline__ void add(C& s, C v, i64) { s += v; }
  static __device__ __forceinline__ C merge(C a, C b) { return a + b; }
  static __device__ __forceinline__ C finish(C s) { return s; }
  template <class T, class Row>
  static __device__ __forceinline__ C of_row(T& team, const Row& row, bool) {
    return team.sum(row.sum([](C x, auto) { return x; }));
  }
};
template <class C>
struct SumSquares : Sum<C> {
  static __device__ __forceinline__ void add(C& s, C v, i64) { s += v * v; }
  template <class T, class Row>
  static __device__ __forceinline__ C of_row(T& team, const Row& row, bool) {
    return team.sum(row.sum([](C x, auto) { return x * x; }));
  }
};
template <class C>
struct Prod : Sum<C> {
  static __device__ __forceinline__ C init() { return 1; }
  static __device__ __forceinline__ void add(C& s, C v, i64) { s *= v; }
  static __device__ __forceinline__ C merge(C a, C b) { return a * b; }
};

template <template <class> class R, bool packs = true, bool mean = false>
void run_sum(const Stream& s, const Call& c) {
  const ReducePlan p = reduce_plan(c);
  if (p.outs == 0) return;
  const double divisor = mean ? static_cast<double>(p.count) : 1;
  if (!is_float(c.in[0].dtype)) {
    if constexpr (!std::is_same_v<R<i64>, SumSquares<i64>>)
      reduce<R<i64>, 1>(s, p, Integers{c.in[0].data, c.in[0].dtype},
                        {nullptr, c.out[0].data, c.out[0].dtype, 1});
    return;
  }
  with_float(c.in[0].dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    using C = compute_t<S>;
    const Results<R<C>> out{nullptr, c.out[0].data, c.out[0].dtype, divisor};
    if constexpr (packs)
      if (reduce_held<R<C>, S>(s, p, c.in[0].data, out)) return;
    reduce<R<C>, packs ? pack_of<S> : 1>(s, p, Elements<S>{reinterpret_cast<const S*>(c.in[0].data)}, out);
  });
}

std::size_t sum_workspace(const Call& c) {
  return partial_bytes<Sum<double>>(reduce_plan(c));
}

template <class C>
void sum_parts_of(const Stream& s, const void* partial, i64 n, i64 parts, i64 step, const Arg& out) {
  Strides to;
  to.rank = 1, to.size[0] = n, to.stride[0] = 1;
  merge_partials<Sum<C>>(s, static_cast<const C*>(partial), n, parts, step, 1, to,
                         {nullptr, out.data, out.dtype, 1});
}

}  // namespace

void sum_parts(const Stream& s, const void* partial, bool wide, i64 n, i64 parts, i64 step, const Arg& out) {
  wide ? sum_parts_of<double>(s, partial, n, parts, step, out)
       : sum_parts_of<float>(s, partial, n, parts, step, out);
}

extern const Kernel sum_kernel{&run_sum<Sum>, &sum_workspace};
extern const Kernel mean_kernel{&run_sum<Sum, true, true>, &sum_workspace};
extern const Kernel sum_squares_kernel{&run_sum<SumSquares>, &sum_workspace};
extern const Kernel prod_kernel{&run_sum<Prod, false>, &sum_workspace};

}  // namespace tg::cuda
