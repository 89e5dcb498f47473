// z_K, z_V and z_Q of attention on tensor cores in one pass, for heads to 128 and, in free order, beyond:
// blocks for some keys add their parts of z_Q to sums in global memory. In free order all add to the same
// sums; in order there are only as many blocks as the GPU holds at a time, and each has sums of its own.
#include "backends/cuda/attention/backward_one_pass_sm80.cuh"

namespace tg::cuda {

using namespace attn;

namespace {

// z_Q = Σ sums·scale, a warp for 16 rows.
template <class S>
__global__ void __launch_bounds__(range_tile * 2)
    round_query_gradients(const __grid_constant__ Attention x, const Work work) {
  const int tiles = (x.L + range_tile - 1) / range_tile, tile = blockIdx.x % tiles, bh = blockIdx.x / tiles;
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

// Whether a block has the shared memory.
bool fits(const Attention& x, const Gpu& gpu) {
  if (is_wide(x)) return fits_wide_backward(x, gpu);
  return with_size(x, [&](auto size, auto options) {
    return Shared<by_key, size, size, options>::fitting_stages(gpu.shared_per_block) > 0;
  });
}

}  // namespace

// The fewest that keep nearly all of the GPU busy; each takes B·H·L·d floats of memory. Short heads leave
// sums too little time between their beginning and their end.
int one_pass_walkers(const Attention& x, const Gpu& gpu) {
  constexpr int most = 8, least_keys = 1024;
  if (!fits(x, gpu)) return 0;
  if (x.free_order) return 1;
  if (is_wide(x) || x.T < least_keys) return 0;
  const Cut c = with_size(x, [](auto size, auto options) { return cut<by_key, size, size, options>(); });
  const i64 heads = i64(x.B) * x.Hk, pieces = (x.T + c.kept - 1) / c.kept,
            places =
                i64{gpu.processors} * 8 / c.warps;  // warps with all the registers that a thread can have
  for (const double wanted : {0.95, 0.9, 0.85})
    for (int walkers = 1; walkers <= most; ++walkers) {
      const i64 times = (heads * walkers + places - 1) / places * ((pieces + walkers - 1) / walkers);
      if (double(heads * pieces) >= wanted * double(times * places)) return walkers;
    }
  return 0;
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
