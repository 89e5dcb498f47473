// sum over axes: out[o] = Σ_r x[o, r].
#include "backends/cpu/kernels/kernels.h"
#include "ops/reduce.h"

namespace tg::cpu::TG_ISA {

namespace {

template <class T, class C>
void run_as(const Call& call) {
  const Layout &in = call.in[0].layout, &out = call.out[0].layout;
  const Axes& axes = call.attrs->as<ReduceAttrs>().axes;
  const T* x = reinterpret_cast<const T*>(call.in[0].data);
  T* y = reinterpret_cast<T*>(call.out[0].data);
  const std::int64_t outs = out.numel();
  std::int64_t inner = 1;
  for (std::int64_t a : axes) inner *= in.shape[static_cast<int>(a)];
  for (std::int64_t o = 0; o < outs; ++o) {
    std::int64_t rest = o, base = 0;
    for (int a = in.rank() - 1; a >= 0; --a) {
      if (axes.contains(a)) continue;
      base += rest % in.shape[a] * in.strides[a];
      rest /= in.shape[a];
    }
    C total = 0;
    for (std::int64_t r = 0; r < inner; ++r) {
      std::int64_t left = r, at = base;
      for (int k = axes.size() - 1; k >= 0; --k) {
        const int a = static_cast<int>(axes[k]);
        at += left % in.shape[a] * in.strides[a];
        left /= in.shape[a];
      }
      total += static_cast<C>(x[at]);
    }
    y[o] = static_cast<T>(total);
  }
}

void run(Worker& w, const Call& call) {
  if (w.thread != 0) return;
  if (call.in[0].dtype == DType::f64) run_as<double, double>(call);
  if (call.in[0].dtype == DType::f32) run_as<float, float>(call);
}

}  // namespace

const Kernel sum_kernel{&run};

}  // namespace tg::cpu::TG_ISA
