// The backward of bf16 and f16 on tensor cores in one pass over keys: blocks add their parts of z_Q to sums
// in global memory. Wide heads without such sums get z_Q from a second pass, over queries.
#include "backends/cuda/attention/backward/backward_one_pass_sm80.cuh"

namespace tg::cuda::attention {

namespace one_pass {

// z_Q = Σ sums·scale, summed over the workers. Each warp computes 16 rows.
template <class S>
__global__ void __launch_bounds__(range_tile * 2)
    round_query_gradients(const __grid_constant__ AttentionCall x, const Workspace work) {
  const int tiles = work.tiles(x), tile = blockIdx.x % tiles, bh = blockIdx.x / tiles;
  const int lane = lane_id(), rows = tile * (range_tile / 16) + threadIdx.x / 32, i = rows * 16 + lane / 4;
  const float scale = static_cast<float>(x.scale);
  S* out = x.z_q.at<S>(bh / x.H, bh % x.H) + lane % 4 * 2;
  for (int part = 0; part < x.d / 8; ++part) {
    float4 c{0, 0, 0, 0};
    for (int w = 0; w < work.workers; ++w) {
      const float* sums = work.z_q_part(x, i64(w) * x.B * x.H + bh, rows, part);
      const float4 own = reinterpret_cast<const float4*>(sums)[lane];
      c = {c.x + own.x, c.y + own.y, c.z + own.z, c.w + own.w};
    }
    u32 *first = reinterpret_cast<u32*>(out + i * x.z_q.row + part * 8),
        *second = reinterpret_cast<u32*>(out + (i + 8) * x.z_q.row + part * 8);
    if (i < x.L) *first = pack(c.x * scale, c.y * scale, S());
    if (i + 8 < x.L) *second = pack(c.z * scale, c.w * scale, S());
  }
}

}  // namespace one_pass

void launch_one_pass(const Stream& s, const AttentionCall& x, const Workspace& work, const Powers*) {
  using namespace one_pass;
  one_pass::with_shape(x, [&](auto d, auto dv, auto options) {
    launch<by_key, d, dv, options>(s, x, work);
    if constexpr (d > 128)
      if (!work.z_q) launch<by_query, d, dv, options>(s, x, work);
  });
  const i64 tiles = i64(x.B) * x.H * work.tiles(x);
  if (!work.z_q || tiles == 0) return;
  with_16_bits(x.type, [&](auto zero) {
    launch_kernel(s, {blocks_for(tiles, 1), range_tile * 2}, round_query_gradients<decltype(zero)>, x, work);
  });
}

}  // namespace tg::cuda::attention
