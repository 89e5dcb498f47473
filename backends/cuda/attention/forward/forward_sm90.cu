// Launches the forward on Hopper for bf16, f16, and f32 split into f16.
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
      // With more than two consumer warpgroups, the scheduler warp has too few registers for parts.
      using Few = std::conditional_t<(Whole::groups > 2), TileShape<64, 64, 2>, Whole>;
      // Kernels for parts or short heads accept any scores, because one branch per tile costs them little.
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
