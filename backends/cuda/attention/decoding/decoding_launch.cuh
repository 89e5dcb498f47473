// The kernel of decoding, and its launch. What streams multiply with is a template argument: tensor cores
// (decoding_sm80.cuh) or multiply-adds of f32 (decoding_f32.cuh), a struct with the element type S, the shape
// At, and a function stream().
#pragma once

#include "backends/cuda/attention/decoding/decoding_loader.cuh"
#include "backends/cuda/attention/decoding/decoding_merge.cuh"
#include "backends/cuda/attention/decoding/decoding_plan.cuh"
#include "backends/cuda/attention/stages/checks.cuh"
#include "backends/cuda/tile/ptx_sm90.cuh"

namespace tg::cuda::attention::decoding {

template <class Multiplied, class Cache>
__device__ __forceinline__ void decode_items(const AttentionCall& x, const Workspace& work,
                                             const Plan<Cache>& plan, const Faults& faults) {
  using S = typename Multiplied::S;
  using At = typename Multiplied::At;
  TG_DYNAMIC_SHARED(memory, 1024);
  let_next_kernel_begin();
  // Where keys are can be found while the kernel before is running; what they are cannot.
  if (!x.fixed_places) wait_for_kernel_before();
  const bool crowded = At::takes_short && plan.tiles.count * x.Hk >= 2 * static_cast<int>(gridDim.x);
  const Items<Cache> items(x, plan.ranges, plan.tiles, reinterpret_cast<Entry*>(memory + At::entries),
                           reinterpret_cast<Item*>(memory + At::noted),
                           crowded ? reinterpret_cast<ShortTiles*>(memory + At::shorts) : nullptr,
                           At::step / 2);
  const int warp = threadIdx.x / 32;
  const bool alone = items.count - items.shorts <= static_cast<int>(gridDim.x);
  if (warp < At::streams && items.first(warp) < items.count)
    Multiplied::stream(x, plan, items, memory, warp, alone);
  else
    wait_for_kernel_before();
  // Warps that write have nothing else to do while the first keys arrive.
  if (plan.tiles.first == 0 && warp >= At::streams)
    check_places(x, faults, threadIdx.x - 32 * At::streams, 32 * At::writers);
  if (alone)
    write_items<S, At, Cache, true>(x, work, items, memory);
  else if (warp >= At::streams)
    write_items<S, At, Cache, false>(x, work, items, memory);
}

template <class Multiplied, class Cache>
__global__ void __launch_bounds__(Multiplied::At::threads, Multiplied::At::least_blocks)
    decode(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work,
           const __grid_constant__ Plan<Cache> plan, Faults faults) {
  if constexpr (may_be_launched<typename Multiplied::At>)
    decode_items<Multiplied, Cache>(x, work, plan, faults);
}

template <class Multiplied, class Cache>
void launch(const Stream& s, const AttentionCall& x, const Workspace& work,
            const typename Cache::Ranges& ranges) {
  using At = typename Multiplied::At;
  const i64 places = i64{s.gpu.processors} * At::blocks;
  Plan<Cache> plan = plan_of<Cache>(x, ranges);
  for (int n = 1; plan.tiles.count > 0; plan.tiles = tiles_of_launch(x, n++)) {
    const i64 items = i64{plan.tiles.count} * x.Hk * work.parts;
    LaunchShape shape{blocks_for(std::min(items, places), 1), At::threads,
                      static_cast<std::size_t>(At::bytes(rows_of_tile(x)))};
    shape.early = s.gpu.hopper;
    launch_kernel(s, shape, decode<Multiplied, Cache>, x, work, plan, s.faults);
  }
}

// Of a type, and the shape and options of a call.
template <template <class, class, Options> class Multiplied, class S, class Cache>
void launch_call(const Stream& s, const AttentionCall& x, const Workspace& work,
                 const typename Cache::Ranges& ranges) {
  with_constant<none, any>(has_plain_scores(x) ? none : any, [&](auto options) {
    with_shape<sizeof(S)>(x, s.gpu, [&](auto shape) {
      launch<Multiplied<S, decltype(shape), options>, Cache>(s, x, work, ranges);
    });
  });
}

}  // namespace tg::cuda::attention::decoding
