// The decoding kernel and its launch. The template argument Multiplied is the arithmetic of the streaming
// warps: tensor cores (decoding_sm80.cu) or f32 multiply-adds (decoding_f32.cu). It defines the element type
// S and the shape At. Its members are registers of a streaming warp.
#pragma once

#include "backends/cuda/attention/decoding/decoding_loader.cuh"
#include "backends/cuda/attention/decoding/decoding_merge.cuh"
#include "backends/cuda/attention/stages/checks.cuh"
#include "backends/cuda/tile/ptx_sm90.cuh"

namespace tg::cuda::attention::decoding {

// Main loop of a streaming warp that has items: its short items, then all other items of the block. `alone`
// states that the block has at most one item that is not short. Score and loader are not members of
// `Multiplied`, because nvcc would then reload the item's key range for each row that the loader copies.
template <class Multiplied, class Cache>
__device__ __forceinline__ void stream_items(const AttentionCall& x, const Plan<Cache>& plan,
                                             const Items<Cache>& items, unsigned char* memory, int stream,
                                             bool alone) {
  using S = typename Multiplied::S;
  using At = typename Multiplied::At;
  // The compile-time constant avoids registers for short items if the shape does not support them.
  const auto is_short = [](const Item& item) { return At::takes_short && item.is_short; };
  // Recomputed at each use to save registers.
  const auto place = [&] { return StreamResults<At>(memory, stream, At::rows_of_tile(x)); };
  int n = items.first(stream);
  const Score<S> score(plan.factor, plan.cap);
  const float factor = Multiplied::options == any ? 1 : score.factor;
  Loader<S, At, Cache> loader(x, plan.cache, items, stream, shared_address(memory) + stream * At::ring);
  wait_for_kernel_before();
#pragma unroll
  for (int n = 0; n < At::stages; ++n) loader.prefetch();
  Multiplied warp(memory, stream);
  const Item* item = items.kept(n, stream);
  warp.load_queries(x, *item);
  int slot = 0;
  bool first = true;
#pragma unroll 1
  while (n < items.count) {
    if (is_short(*item)) begin_short(place());
    warp.begin(x, *item);
#pragma unroll 1
    for (int key = first_key<At>(*item, stream); key < item->keys.to; key += step_of<At>(*item)) {
      ptx::cp_async_wait<At::stages - 1>();
      __syncwarp();
      const u32 at = slot * At::stage;
      slot = slot + 1 < At::stages ? slot + 1 : 0;
      warp.take(x, *item, key, score, factor, at, loader.values(at));
      __syncwarp();  // no lane needs the slice
      loader.prefetch();
      if (is_short(*item)) warp.add_slice(place(), factor), warp.clear();
    }
    const bool was_short = is_short(*item);
    if (was_short) put_short<S>(x, *item, place());
    // Queries of the next item are loaded while this item's results are stored.
    n = items.after(n, At::streams);
    if (n < items.count) item = items.kept(n, stream), warp.load_queries(x, *item);
    if (was_short) continue;
    if (!first) ptx::bar_sync(may_store + stream, 32 * (At::writers + 1));
    first = false;
    warp.store_results(place());
    if (!alone) ptx::bar_arrive(results_ready, At::threads);
  }
}

template <class Multiplied, class Cache>
__device__ __forceinline__ void decode_items(const AttentionCall& x, const Workspace& work,
                                             const Plan<Cache>& plan, const Faults& faults) {
  using S = typename Multiplied::S;
  using At = typename Multiplied::At;
  TG_DYNAMIC_SHARED(memory, 1024);
  let_next_kernel_begin();
  // If no step writes the locations of the keys, the locations may be read before the previous kernel ends.
  // The keys may not be read before that.
  if (!x.fixed_positions) wait_for_kernel_before();
  const bool crowded = At::takes_short && plan.tiles.count * x.Hk >= 2 * static_cast<int>(gridDim.x);
  const Items<Cache> items(x, plan.ranges, plan.tiles, reinterpret_cast<Entry*>(memory + At::entries),
                           reinterpret_cast<Item*>(memory + At::noted),
                           crowded ? reinterpret_cast<ShortTiles*>(memory + At::shorts) : nullptr,
                           At::step / 2);
  const int warp = threadIdx.x / 32;
  const bool alone = items.count - items.shorts <= static_cast<int>(gridDim.x);
  if (warp < At::streams && items.first(warp) < items.count)
    stream_items<Multiplied>(x, plan, items, memory, warp, alone);
  else
    wait_for_kernel_before();
  // Writing warps check the inputs while the first keys are loading.
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
void launch(const Stream& s, const AttentionCall& x, const Workspace& work) {
  using At = typename Multiplied::At;
  for_each_launch<Cache>(x, [&](const Plan<Cache>& plan) {
    const i64 items = i64{plan.tiles.count} * x.Hk * work.parts;
    launch_early(s,
                 {blocks_for(std::min<i64>(items, s.gpu.processors), 1), At::threads,
                  static_cast<std::size_t>(At::bytes(rows_of_tile(x)))},
                 decode<Multiplied, Cache>, x, work, plan, s.faults);
  });
}

// Launches the kernel for a type, and the shape and options of a call.
template <template <class, class, Options> class Multiplied, class S>
void launch_call(const Stream& s, const AttentionCall& x, const Workspace& work) {
  with_cache(x, [&](auto cache) {
    with_constant<none, any>(has_plain_scores(x) ? none : any, [&](auto options) {
      with_shape<sizeof(S)>(x, s.gpu, [&](auto shape) {
        launch<Multiplied<S, decltype(shape), options>, decltype(cache)>(s, x, work);
      });
    });
  });
}

}  // namespace tg::cuda::attention::decoding
