// z_K and z_V of attention on tensor cores for heads to 128, and in the same pass, where asked for, z_Q:
// blocks add their parts to sums in global memory, in any order.
#include "backends/cuda/kernels/attention_gradients.cuh"

namespace tg::cuda {

using namespace attn;

namespace {

// z_Q = sums·scale, a warp for 16 rows.
template <class S>
__global__ void __launch_bounds__(range_tile * 2)
    round_query_gradients(const __grid_constant__ Attention x, const Work work) {
  const int tiles = (x.L + range_tile - 1) / range_tile, tile = blockIdx.x % tiles, bh = blockIdx.x / tiles;
  const int lane = lane_id(), rows = tile * (range_tile / 16) + threadIdx.x / 32, i = rows * 16 + lane / 4;
  const float scale = static_cast<float>(x.scale);
  const float4* sums = reinterpret_cast<const float4*>(work.z_q_part(x, bh, rows, 0));
  S* out = x.z_q.at<S>(bh / x.H, bh % x.H) + lane % 4 * 2;
  for (int part = 0; part < x.d / 8; ++part) {
    const float4 c = sums[part * 32 + lane];
    u32 *first = reinterpret_cast<u32*>(out + i * x.z_q.row + part * 8),
        *second = reinterpret_cast<u32*>(out + (i + 8) * x.z_q.row + part * 8);
    if (i < x.L) *first = pack(c.x * scale, c.y * scale, S());
    if (i + 8 < x.L) *second = pack(c.z * scale, c.w * scale, S());
  }
}

// Calls f with the head size and the options as constants.
template <class F>
auto with_size(const Attention& x, F&& f) {
  const bool plain = x.softcap == 0 && !x.bias.data && x.scale > 0 && x.dropout == 0;
  const auto sized = [&](auto size) {
    return plain ? f(size, std::integral_constant<Options, none>())
                 : f(size, std::integral_constant<Options, any>());
  };
  const int most = x.d > x.dv ? x.d : x.dv;
  if (most <= 64) return sized(std::integral_constant<int, 64>());
  if (most <= 96) return sized(std::integral_constant<int, 96>());
  return sized(std::integral_constant<int, 128>());
}

}  // namespace

bool fits_one_pass(const Attention& x, const Gpu& gpu) {
  if (is_wide(x)) return fits_wide_backward(x, gpu);
  return with_size(x, [&](auto size, auto options) {
    return Shared<by_key, size, size, options>::fitting_stages(gpu.shared_per_block) > 0;
  });
}

void launch_one_pass(const Stream& s, const Attention& x, const Work& work) {
  if (is_wide(x))
    launch_wide_key_gradients(s, x, work);
  else
    with_size(x, [&](auto size, auto options) { launch_gradients<by_key, size, size, options>(s, x, work); });
  const i64 tiles = i64(x.B) * x.H * ((x.L + range_tile - 1) / range_tile);
  if (tiles == 0) return;
  const LaunchShape shape{blocks_for(tiles, 1), range_tile * 2};
  x.type == DType::bf16 ? launch_kernel(s, shape, round_query_gradients<__nv_bfloat16>, x, work)
                        : launch_kernel(s, shape, round_query_gradients<__half>, x, work);
}

}  // namespace tg::cuda
