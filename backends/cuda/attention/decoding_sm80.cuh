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
//
// Before that streams compute short tiles, each by itself: what as many streams would leave of its slices
// comes together in the same order, and so in the same bits.
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

// c, π and G of a stream.
template <class At>
__device__ __forceinline__ void leave(const Left<At>& to, ColumnSoftmax<At::rows>& softmax,
                                      Accumulator<At::D, At::rows>& o) {
#pragma unroll
  for (int c = 0; c < o.columns; ++c) {
    const int query = lane_column() + o.column(c);
    const float sum = column_sum(softmax.sum[c]);
    if (query >= to.rows) continue;
    if (lane_row() == 0) to.tops[query] = {softmax.top[c], sum};
#pragma unroll
    for (int r = 0; r < o.rows; ++r) to.sums[query * At::row + lane_row() + o.row(r)] = o(r, c);
  }
}

// Of a short tile: nothing yet, a slice more, and the results.
template <class At>
__device__ __forceinline__ void begin_short(const Left<At>& to) {
#pragma unroll 1
  for (int n = lane_id(); n < to.rows; n += 32) to.tops[n] = {-INFINITY, 0};
#pragma unroll 1
  for (int n = lane_id(); n < to.rows * At::row; n += 32) to.sums[n] = 0;
  __syncwarp();
}
template <class At>
__device__ __forceinline__ void add_slice(const Left<At>& to, ColumnSoftmax<At::rows>& softmax,
                                          Accumulator<At::D, At::rows>& o) {
#pragma unroll
  for (int c = 0; c < o.columns; ++c) {
    const int query = lane_column() + o.column(c);
    const float sum = column_sum(softmax.sum[c]);
    const float2 before = query < to.rows ? to.tops[query] : float2{0, 0};
    __syncwarp();
    if (query >= to.rows) continue;
    const Joined all(before.x, softmax.top[c]);
    if (lane_row() == 0) to.tops[query] = {all.top, all.of(before.y, sum)};
#pragma unroll
    for (int r = 0; r < o.rows; ++r) {
      float& g = to.sums[query * At::row + lane_row() + o.row(r)];
      g = all.of(g, o(r, c));
    }
  }
}
template <class S, class At>
__device__ __forceinline__ void put_short(const AttentionCall& x, const Item& item, const Left<At>& from) {
  constexpr int quads = At::D / 4;
  __syncwarp();
#pragma unroll 1
  for (int i = lane_id(); i < item.tile.rows * quads; i += 32)
    if (const int row = i / quads, column = i % quads * 4; column < x.dv)
      put<S>(x, item, row, column, from.at(row, column).as_one());
  __syncwarp();
}

// A streaming warp that has items: its short items and then all others of the block. `alone`: there is one of
// these.
template <class S, class At, Options options, class Cache>
__device__ void stream_keys(const AttentionCall& x, const Plan<Cache>& plan, const Items<Cache>& items,
                            unsigned char* memory, int stream, bool alone) {
  const u32 ring = shared_address(memory) + stream * At::ring;
  auto& seen = reinterpret_cast<SeenKeys<At::rows>*>(memory + At::seen)[stream];
  int n = items.first(stream);
  const auto place = [&] { return Left<At>(memory, stream, rows_of_tile(x)); };  // not kept in registers
  const Score<S> score(plan.factor, plan.cap);
  const float factor = options == any ? 1 : score.factor;
  Loader<S, At, Cache> loader(x, plan.cache, items, stream, ring);
#pragma unroll
  for (int n = 1; n < At::stages; ++n) loader.ask();
  RightOperand<At::rows, At::D> q;
  Item item = items.at(n);
  load(
      q, [&](int r) { return query<S>(x, item, r); }, x.d);
  int slot = 0;
  bool first = true;
#pragma unroll 1
  while (n < items.count) {
    const Band band(x, sequence_of_query(x, item.tile.b, 0));
    __syncwarp();  // no lane needs those of the item before
    seen.set_of_groups(band, group_of(x), item.tile.row0, item.tile.rows);
    __syncwarp();
    KeyRange every = item.tile.every_of(x, band);
    every = {max(every.from, item.keys.from), min(every.to, item.keys.to)};
    if (item.is_short) begin_short(place());
    Accumulator<At::D, At::rows> o;
    o.fill(0);
    ColumnSoftmax<At::rows> softmax;
#pragma unroll 1
    for (int key = first_key<At>(item, stream); key < item.keys.to; key += step_of<At>(item)) {
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
      if (item.is_short) {
        add_slice(place(), softmax, o);
        o.fill(0);
        softmax = {};
      }
    }
    const bool is_short = item.is_short;
    if (is_short) put_short<S>(x, item, place());
    // Queries of the next item arrive while this one's sums are left.
    n = items.after(n, At::streams);
    if (n < items.count) {
      item = items.at(n);
      load(
          q, [&](int r) { return query<S>(x, item, r); }, x.d);
    }
    if (is_short) continue;
    if (!first) ptx::bar_sync(may_leave + stream, 32 * (At::writers + 1));
    first = false;
    leave(place(), softmax, o);
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
  const bool crowded = At::takes_short && plan.tiles.count * x.Hk >= 2 * static_cast<int>(gridDim.x);
  const Items<Cache> items(x, plan.ranges, plan.tiles, reinterpret_cast<Entry*>(memory + At::entries),
                           crowded ? reinterpret_cast<ShortTiles*>(memory + At::shorts) : nullptr,
                           At::step / 2);
  const int warp = threadIdx.x / 32;
  // Warps that write have nothing else to do while the first keys arrive.
  if (plan.tiles.first == 0 && warp >= At::streams)
    check_places(x, faults, threadIdx.x - 32 * At::streams, 32 * At::writers);
  const bool alone = items.count - items.shorts <= static_cast<int>(gridDim.x);
  if (warp < At::streams && items.first(warp) < items.count)
    stream_keys<S, At, options>(x, plan, items, memory, warp, alone);
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
