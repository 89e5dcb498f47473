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

#include "backends/cuda/attention/decoding_launch.cuh"
#include "backends/cuda/attention/visible_keys.cuh"
#include "backends/cuda/tile/right_operand.cuh"

namespace tg::cuda::attention::decoding {

using namespace tile;

// What a stream has of an item in bf16 or f16 (decoding_stream.cuh).
template <class S_, class At_, Options options>
struct MultipliedByTensorCores {
  using S = S_;
  using At = At_;
  const AttentionCall& x;
  const u32 ring;
  SeenKeys<At::rows>& seen;
  const Score<S> score;
  const float factor;
  RightOperand<At::rows, At::D> q;
  Accumulator<At::D, At::rows> o;
  ColumnSoftmax<At::rows> softmax;
  bool knows_seen = false;  // which keys the item's queries see

  template <class Plan>
  __device__ __forceinline__ MultipliedByTensorCores(const AttentionCall& x, const Plan& plan,
                                                     unsigned char* memory, int stream)
      : x(x),
        ring(shared_address(memory) + stream * At::ring),
        seen(reinterpret_cast<SeenKeys<At::rows>*>(memory + At::seen)[stream]),
        score(plan.factor, plan.cap),
        factor(options == any ? 1 : score.factor) {}

  __device__ __forceinline__ void load_queries(const Item& item) {
    load(
        q, [&](int r) { return query<S>(x, item, r); }, x.d);
    knows_seen = false;
  }
  __device__ __forceinline__ void begin() {
    o.fill(0);
    softmax = {};
  }
  __device__ __forceinline__ void add(const Item& item, int key, u32 k_at, u32 v_at) {
    const SharedTile<At::D> k{ring + k_at}, v{ring + v_at};
    Accumulator<At::keys, At::rows> s;
    s.fill(0);
    mma_ABt<S>(s, k, q);  // Aᵀ
    if constexpr (options == any) score.apply(s);
    if (!covers(item.every, key, At::keys)) {
      if (!knows_seen) {
        __syncwarp();  // no lane needs those of the item before
        seen.set_of_groups(Band(x, sequence_of_query(x, item.tile.b, 0)), group_of(x), item.tile.row0,
                           item.tile.rows);
        __syncwarp();
        knows_seen = true;
      }
      mask<false>(s, seen, 0, 0, key);
    }
    softmax.step(s, o, factor);              // c, π, Gᵀ rescaled, P = exp(A − c)
    mma_AtBt<S>(o, v, right_operand<S>(s));  // Gᵀ += Vᵀ·Pᵀ
  }

  __device__ __forceinline__ void leave(const Left<At>& to) {
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
  __device__ __forceinline__ void add_to(const Left<At>& to) {
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
};

template <class Cache>
void launch_on_tensor_cores(const Stream& s, const AttentionCall& x, const Workspace& work,
                            const typename Cache::Ranges& ranges) {
  with_16_bits(x.type, [&](auto zero) {
    launch_call<MultipliedByTensorCores, decltype(zero), Cache>(s, x, work, ranges);
  });
}

}  // namespace tg::cuda::attention::decoding
