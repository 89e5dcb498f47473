// z_K, z_V and z_Q on tensor cores in one pass, for heads to 128 and, in free order, beyond: blocks for some
// keys add their parts of z_Q to sums in global memory. In free order all add to the same sums; in order
// there are only as many blocks as the GPU holds at a time, and each has sums of its own.
#include "backends/cuda/attention/backward_one_pass_sm80.cuh"

namespace tg::cuda::attention {

namespace one_pass {

// z_Q = Σ sums·scale, a warp for 16 rows.
template <class S>
__global__ void __launch_bounds__(range_tile * 2)
    round_query_gradients(const __grid_constant__ AttentionCall x, const Workspace work) {
  const int tiles = work.tiles(x), tile = blockIdx.x % tiles, bh = blockIdx.x / tiles;
  const int lane = lane_id(), rows = tile * (range_tile / 16) + threadIdx.x / 32, i = rows * 16 + lane / 4;
  const float scale = static_cast<float>(x.scale);
  S* out = x.z_q.at<S>(bh / x.H, bh % x.H) + lane % 4 * 2;
  for (int part = 0; part < x.d / 8; ++part) {
    float4 c{0, 0, 0, 0};
    for (int w = 0; w < work.walkers; ++w) {
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

void launch_one_pass(const Stream& s, const AttentionCall& x, const Workspace& work) {
  using namespace one_pass;
  if (is_wide(x))
    launch_wide_key_gradients(s, x, work);
  else
    with_shape(x, [&](auto size, auto options) { launch<by_key, size, size, options>(s, x, work); });
  const i64 tiles = i64(x.B) * x.H * work.tiles(x);
  if (tiles == 0) return;
  const LaunchShape shape{blocks_for(tiles, 1), range_tile * 2};
  x.type == DType::bf16 ? launch_kernel(s, shape, round_query_gradients<__nv_bfloat16>, x, work)
                        : launch_kernel(s, shape, round_query_gradients<__half>, x, work);
}

}  // namespace tg::cuda::attention
