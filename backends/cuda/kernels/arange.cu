#include "backends/cuda/kernels/region.cuh"
#include "ops/index.h"

namespace tg::cuda {

namespace {

// out[i] = start + i·step, in f64, or in i64 for integers.
template <class S, class C, class I>
__global__ void __launch_bounds__(threads_per_block) count(S* out, C start, C step, I n) {
  begin_early();
  const I i = thread_number<I>();
  if (i < n) out[i] = narrow<S>(start + static_cast<C>(i) * step);
}

void launch_arange(const Stream& s, const Call& c) {
  const Arg& out = c.out[0];  // one dense axis
  const auto& a = c.attrs->as<ArangeAttrs>();
  const i64 n = out.layout.numel();
  if (n == 0) return;
  with_any(out.dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    using C = std::conditional_t<std::is_same_v<compute_t<S>, i64>, i64, double>;
    with_count(n, [&](auto* counter) {
      using I = pointee_t<decltype(counter)>;
      launch_early(s, {blocks_for(n, threads_per_block), threads_per_block}, count<S, C, I>,
                   reinterpret_cast<S*>(out.data), static_cast<C>(a.start), static_cast<C>(a.step),
                   static_cast<I>(n));
    });
  });
}

}  // namespace

extern const Kernel arange_kernel{&launch_arange};

}  // namespace tg::cuda
