// Decoding on tensor cores (sm_80 and later). A block goes from item to item (decoding_items.cuh). Its
// streaming warps take slices of 16 or 32 keys in turn:
//
//   Aᵀ = K·Qᵀ, c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum
//   Gᵀ ← exp(c_old − c)·Gᵀ + Vᵀ·exp(Aᵀ − c)
//
// Keys and values are left operands, of 16 rows; queries are right ones, of 8: all heads that share a key
// head, with little padding. A stream has its own ring of slices, waits for no other warp while it goes
// through an item, and asks for the first slice of the next item before it has finished this one. At the end
// it leaves c, π and Gᵀ to the writing warps (decoding_merge.cuh), which wait for memory while it goes on.
#pragma once

#include "backends/cuda/attention/checks.cuh"
#include "backends/cuda/attention/decoding_loader.cuh"
#include "backends/cuda/attention/decoding_merge.cuh"
#include "backends/cuda/attention/decoding_plan.cuh"
#include "backends/cuda/attention/visible_keys.cuh"
#include "backends/cuda/tile/ptx_sm90.cuh"
#include "backends/cuda/tile/right_operand.cuh"

namespace tg::cuda::attention::decoding {

using namespace tile;

// c, π and G of a stream, [rows, D].
template <class At>
__device__ __forceinline__ void leave(unsigned char* memory, int stream, int rows,
                                      ColumnSoftmax<At::rows>& softmax, Accumulator<At::D, At::rows>& o) {
  auto* const tops = reinterpret_cast<float2*>(memory + At::tops) + stream * rows;
  auto* const sums = reinterpret_cast<float*>(memory + At::sums(rows)) + stream * rows * At::row;
#pragma unroll
  for (int c = 0; c < o.columns; ++c) {
    const int query = lane_column() + o.column(c);
    const float sum = column_sum(softmax.sum[c]);
    if (query >= rows) continue;
    if (lane_row() == 0) tops[query] = {softmax.top[c], sum};
#pragma unroll
    for (int r = 0; r < o.rows; ++r) sums[query * At::row + lane_row() + o.row(r)] = o(r, c);
  }
}

// A streaming warp: all items of the block. `alone`: there is one.
template <class S, class At, Options options, class Cache>
__device__ void stream_keys(const AttentionCall& x, const Plan<Cache>& plan, const Items<Cache>& items,
                            unsigned char* memory, int stream, bool alone) {
  const u32 ring = shared_address(memory) + stream * At::ring;
  auto& seen = reinterpret_cast<SeenKeys<At::rows>*>(memory + At::seen)[stream];
  const Score<S> score(plan.factor, plan.cap);
  const float factor = options == any ? 1 : score.factor;
  Loader<S, At, Cache> loader(x, plan.cache, items, stream, ring);
#pragma unroll
  for (int n = 1; n < At::stages; ++n) loader.ask();
  RightOperand<At::rows, At::D> q;
  Item item = items.at(blockIdx.x);
  load(
      q, [&](int r) { return query<S>(x, item, r); }, x.d);
  int slot = 0;
  bool first = true;
#pragma unroll 1
  for (int n = blockIdx.x; n < items.count; n += gridDim.x) {
    const Band band(x, sequence_of_query(x, item.tile.b, 0));
    __syncwarp();  // no lane needs those of the item before
    seen.set_of_groups(band, group_of(x), item.tile.row0, item.tile.rows);
    __syncwarp();
    KeyRange every = item.tile.every_of(x, band);
    every = {max(every.from, item.keys.from), min(every.to, item.keys.to)};
    Accumulator<At::D, At::rows> o;
    o.fill(0);
    ColumnSoftmax<At::rows> softmax;
#pragma unroll 1
    for (int key = first_key<At>(item.keys, stream); key < item.keys.to; key += At::streams * At::keys) {
      ptx::cp_async_wait<At::stages - 2>();
      __syncwarp();
      loader.ask();
      const SharedTile<At::D> k{ring + slot * At::stage}, v = loader.values(k.base);
      slot = slot + 1 < At::stages ? slot + 1 : 0;
      Accumulator<At::keys, At::rows> s;
      s.fill(0);
      mma_ABt<S>(s, k, q);  // Aᵀ
      if constexpr (options == any) score.apply(s);
      if (!covers(every, key, At::keys)) mask<false>(s, seen, 0, 0, key);
      softmax.step(s, o, factor);              // c, π, Gᵀ rescaled, P = exp(A − c)
      mma_AtBt<S>(o, v, right_operand<S>(s));  // Gᵀ += Vᵀ·Pᵀ
    }
    // Queries of the next item arrive while this one's sums are left.
    const int next = n + static_cast<int>(gridDim.x);
    if (next < items.count) {
      item = items.at(next);
      load(
          q, [&](int r) { return query<S>(x, item, r); }, x.d);
    }
    if (!first) ptx::bar_sync(may_leave + stream, 32 * (At::writers + 1));
    first = false;
    leave<At>(memory, stream, rows_of_tile(x), softmax, o);
    if (!alone) ptx::bar_arrive(left, At::threads);
  }
}

template <class S, class At, Options options, class Cache>
__global__ void __launch_bounds__(At::threads, At::least_blocks)
    decode(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work,
           const __grid_constant__ Plan<Cache> plan, Faults faults) {
  TG_DYNAMIC_SHARED(memory, 1024);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::let_next_kernel_begin();
  ptx::wait_for_kernel_before();
#endif
  const Items<Cache> items(x, plan.ranges, plan.tiles, reinterpret_cast<Entry*>(memory + At::entries));
  const int warp = threadIdx.x / 32;
  // Warps that write have nothing else to do while the first keys arrive.
  if (plan.tiles.first == 0 && warp >= At::streams)
    check_places(x, faults, threadIdx.x - 32 * At::streams, 32 * At::writers);
  if (static_cast<int>(blockIdx.x) >= items.count) return;
  const bool alone = items.count <= static_cast<int>(gridDim.x);
  if (warp < At::streams) stream_keys<S, At, options>(x, plan, items, memory, warp, alone);
  if (alone)
    Writer<S, At, Cache, true>(x, work, items, memory).run();
  else if (warp >= At::streams)
    Writer<S, At, Cache, false>(x, work, items, memory).run();
}

template <class S, class At, Options options, class Cache>
void launch(const Stream& s, const AttentionCall& x, const Workspace& work,
            const typename Cache::Ranges& ranges) {
  const i64 places = i64{s.gpu.processors} * At::blocks;
  Plan<Cache> plan = plan_of<Cache>(x, ranges);
  for (int n = 1; plan.tiles.count > 0; plan.tiles = tiles_of_launch(x, n++)) {
    const i64 items = i64{plan.tiles.count} * x.Hk * work.parts;
    LaunchShape shape{blocks_for(std::min(items, places), 1), At::threads,
                      static_cast<std::size_t>(At::bytes(rows_of_tile(x)))};
    shape.early = s.gpu.hopper;
    launch_kernel(s, shape, decode<S, At, options, Cache>, x, work, plan, s.faults);
  }
}

// Of the type, shape and options of a call.
template <class Cache>
void launch_call(const Stream& s, const AttentionCall& x, const Workspace& work,
                 const typename Cache::Ranges& ranges) {
  with_16_bits(x.type, [&](auto zero) {
    with_constant<none, any>(has_plain_scores(x) ? none : any, [&](auto options) {
      with_shape(x, s.gpu, [&](auto shape) {
        launch<decltype(zero), decltype(shape), options, Cache>(s, x, work, ranges);
      });
    });
  });
}

}  // namespace tg::cuda::attention::decoding
