// The forward of bf16 and f16 on Hopper.
#include "backends/cuda/attention/forward/forward_sm90.cuh"
#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

void launch_forward_sm90(const Stream& s, const AttentionCall& x, const Workspace& work,
                         const Powers* powers) {
  if (powers) return launch_f32_forward_sm90(s, x, work, powers);
  if (x.d > 256 || x.dv > 256) return launch_wide_forward_sm90(s, x, work);
  using namespace forward_sm90;
  const AttentionCall rows = with_heads_as_rows(x);
  with_16_bits(x.type, [&](auto zero) {
    using S = decltype(zero);
    forward_sm90::with_shape(rows, [&](auto shape) {
      using Whole = decltype(shape);
      // More than two consumer warpgroups leave the one that schedules too few registers for parts.
      using Few = std::conditional_t<(Whole::groups > 2), Shape<64, 64, 2>, Whole>;
      // The kernels that take parts or short heads take any scores: a branch for each tile costs them little.
      if constexpr (Whole::divided)
        launch<S, Whole, any>(s, rows, x.L, work);
      else if (has_plain_scores(x) && work.parts == 1 && x.L == rows.L)
        launch<S, Whole, none>(s, rows, x.L, work);
      else
        launch<S, Divided<Few>, any>(s, rows, x.L, work);
    });
  });
}

}  // namespace tg::cuda::attention
