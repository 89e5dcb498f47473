// logsumexp along one axis: ξ = log Σ exp x by the online normalizer [Ye, Online Softmax §3], as a reduction.
#include "backends/cuda/kernels/online.cuh"
#include "backends/cuda/kernels/reduce_held.cuh"
#include "ops/index.h"

namespace tg::cuda {

namespace {

template <class C>
struct LogSum {
  using State = Normalizer<C>;
  static __device__ __forceinline__ State init() { return {}; }
  static __device__ __forceinline__ void add(State& s, C x, i64) { s.take(x); }
  static __device__ __forceinline__ State merge(State a, const State& b) {
    a.merge(b);
    return a;
  }
  static __device__ __forceinline__ C finish(const State& s) { return s.log_sum(); }
  template <class T, class Row>
  static __device__ __forceinline__ State of_row(T& team, const Row& row, bool) {
    return normalizer_of(team, row);
  }
};

ReducePlan logsumexp_plan(const Call& c) {
  return ReducePlan(c.in[0].layout, c.out[0].layout, {c.attrs->as<SoftmaxAttrs>().axis}, true, false, c.gpu);
}

void launch_logsumexp(const Stream& s, const Call& c) {
  const ReducePlan p = logsumexp_plan(c);
  if (p.outs == 0) return;
  with_float(c.in[0].dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    using R = LogSum<compute_t<S>>;
    const Results<R> out{nullptr, c.out[0].data, c.out[0].dtype};
    if (reduce_held<R, S>(s, p, c.in[0].data, out)) return;
    reduce<R, pack_of<S>>(s, p, Elements<S>{reinterpret_cast<const S*>(c.in[0].data)}, out);
  });
}

std::size_t logsumexp_workspace(const Call& c) {
  return partial_bytes<LogSum<double>>(logsumexp_plan(c));
}

}  // namespace

extern const Kernel logsumexp_kernel{&launch_logsumexp, &logsumexp_workspace};

}  // namespace tg::cuda
