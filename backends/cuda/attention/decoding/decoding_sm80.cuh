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

#include "backends/cuda/attention/decoding/decoding_launch.cuh"
#include "backends/cuda/attention/stages/visible_keys.cuh"
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

// Of a short tile, those of a slice more.
template <class At>
__device__ __forceinline__ void add_slice(const Left<At>& to, ColumnSoftmax<At::rows>& softmax,
                                          Accumulator<At::D, At::rows>& o, float exponent) {
#pragma unroll
  for (int c = 0; c < o.columns; ++c) {
    const int query = lane_column() + o.column(c);
    const float sum = column_sum(softmax.sum[c]);
    const float2 before = query < to.rows ? to.tops[query] : float2{0, 0};
    __syncwarp();
    if (query >= to.rows) continue;
    const Joined all(before.x, softmax.top[c], exponent);
    if (lane_row() == 0) to.tops[query] = {all.top, all.of(before.y, sum)};
#pragma unroll
    for (int r = 0; r < o.rows; ++r) {
      float& g = to.sums[query * At::row + lane_row() + o.row(r)];
      g = all.of(g, o(r, c));
    }
  }
}

// Of bf16 and f16 (decoding_launch.cuh).
template <class S_, class At_, Options options>
struct MultipliedByTensorCores {
  using S = S_;
  using At = At_;

  // With the shape's constant, so that no registers are needed for short items where there are none.
  static __device__ __forceinline__ bool is_short(const Item& item) {
    return At::takes_short && item.is_short;
  }
  // A streaming warp that has items: its short items and then all others of the block. `alone`: there is one
  // of these.
  template <class Cache>
  static __device__ void stream(const AttentionCall& x, const Plan<Cache>& plan, const Items<Cache>& items,
                                unsigned char* memory, int stream, bool alone) {
    const u32 ring = shared_address(memory) + stream * At::ring;
    auto& seen = reinterpret_cast<SeenKeys<At::rows>*>(memory + At::seen)[stream];
    int n = items.first(stream);
    const auto place = [&] {
      return Left<At>(memory, stream, At::rows_of_tile(x));
    };  // not kept in registers
    const Score<S> score(plan.factor, plan.cap);
    const float factor = options == any ? 1 : score.factor;
    Loader<S, At, Cache> loader(x, plan.cache, items, stream, ring);
    wait_for_kernel_before();
#pragma unroll
    for (int n = 0; n < At::stages; ++n) loader.ask();
    RightOperand<At::rows, At::D> q;
    const Item* item = items.kept(n, stream);
    load(
        q, [&](int r) { return query<S>(x, *item, r); }, x.d);
    int slot = 0;
    bool first = true;
#pragma unroll 1
    while (n < items.count) {
      bool knows_seen = false;
      if (is_short(*item)) begin_short(place());
      Accumulator<At::D, At::rows> o;
      o.fill(0);
      ColumnSoftmax<At::rows> softmax;
#pragma unroll 1
      for (int key = first_key<At>(*item, stream); key < item->keys.to; key += step_of<At>(*item)) {
        ptx::cp_async_wait<At::stages - 1>();
        __syncwarp();
        const SharedTile<At::D> k{ring + slot * At::stage}, v = loader.values(k.base);
        slot = slot + 1 < At::stages ? slot + 1 : 0;
        Accumulator<At::keys, At::rows> s;
        s.fill(0);
        mma_ABt<S>(s, k, q);  // Aᵀ
        if constexpr (options == any) score.apply(s);
        if (!covers(item->every, key, At::keys)) {
          if (!knows_seen) {
            __syncwarp();  // no lane needs those of the item before
            seen.set_of_groups(Band(x, sequence_of_query(x, item->tile.b, 0)), group_of(x), item->tile.row0,
                               item->tile.rows);
            __syncwarp();
            knows_seen = true;
          }
          mask<false>(s, seen, 0, 0, key);
        }
        softmax.step(s, o, factor);              // c, π, Gᵀ rescaled, P = exp(A − c)
        mma_AtBt<S>(o, v, right_operand<S>(s));  // Gᵀ += Vᵀ·Pᵀ
        __syncwarp();                            // no lane needs the slice
        loader.ask();
        if (is_short(*item)) {
          add_slice(place(), softmax, o, factor);
          o.fill(0);
          softmax = {};
        }
      }
      const bool was_short = is_short(*item);
      if (was_short) put_short<S>(x, *item, place());
      // Queries of the next item arrive while this one's sums are left.
      n = items.after(n, At::streams);
      if (n < items.count) {
        item = items.kept(n, stream);
        load(
            q, [&](int r) { return query<S>(x, *item, r); }, x.d);
      }
      if (was_short) continue;
      if (!first) ptx::bar_sync(may_leave + stream, 32 * (At::writers + 1));
      first = false;
      leave(place(), softmax, o);
      if (!alone) ptx::bar_arrive(left, At::threads);
    }
  }
};

template <class Cache>
void launch_on_tensor_cores(const Stream& s, const AttentionCall& x, const Workspace& work,
                            const typename Cache::Ranges& ranges) {
  with_16_bits(x.type, [&](auto zero) {
    launch_call<MultipliedByTensorCores, decltype(zero), Cache>(s, x, work, ranges);
  });
}

}  // namespace tg::cuda::attention::decoding
