// The forward on Hopper of bf16, f16 and f32 as f16 terms.
#include "backends/cuda/attention/forward/forward_576_sm90.cuh"
#include "backends/cuda/attention/forward/forward_sm90.cuh"

namespace tg::cuda::attention {

void launch_forward_sm90(const Stream& s, const AttentionCall& x, const Workspace& work,
                         const Powers* powers) {
  using namespace forward_sm90;
  const AttentionCall rows = powers ? x : with_heads_as_rows(x);
  const auto launch = [&]<class S, class At, Options options>(S, At, constant<options>) {
    launch_items<At>(s, rows, x.L, work, Shared<At>::bytes, attend<S, At, options>, powers);
  };
  if (powers) return with_f32_shape(x, [&](auto shape) { launch(__half(), shape, constant<any>()); });
  with_16_bits(x.type, [&](auto zero) {
    using S = decltype(zero);
    if (x.d > 256 || x.dv > 256)
      return with_constant<false, true>(values_are_keys(x), [&](auto values_are_keys) {
        using At = forward_576_sm90::TileShape<values_are_keys>;
        launch_items<At>(s, rows, x.L, work, forward_576_sm90::Shared<At>::bytes,
                         forward_576_sm90::attend<S, At>, powers);
      });
    forward_sm90::with_shape(rows, [&](auto shape) {
      using Whole = decltype(shape);
      // More than two consumer warpgroups leave the one that schedules too few registers for parts.
      using Few = std::conditional_t<(Whole::groups > 2), TileShape<64, 64, 2>, Whole>;
      // The kernels that take parts or short heads take any scores: a branch for each tile costs them little.
      if constexpr (Whole::divided)
        launch(zero, shape, constant<any>());
      else if (has_plain_scores(x) && work.parts == 1 && x.L == rows.L)
        launch(zero, shape, constant<none>());
      else
        launch(zero, Divided<Few>(), constant<any>());
    });
  });
}

}  // namespace tg::cuda::attention
