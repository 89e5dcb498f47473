// Decoding on tensor cores (sm_80 and later). A block processes one item after the other
// (decoding_items.cuh). Its streaming warps alternate in processing slices of 16 or 32 keys:
//
//   Aᵀ = K·Qᵀ, c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum
//   Gᵀ ← exp(c_old − c)·Gᵀ + Vᵀ·exp(Aᵀ − c)
//
// Keys and values are left operands with 16 rows. Queries are right operands with 8 columns. These are all
// heads that share a key head, so there is little padding. Each stream has its own ring of slices and waits
// for no other warp during an item. It prefetches the first slice of the next item before it finishes the
// current item. At the end it stores c, π and Gᵀ for the writing warps (decoding_merge.cuh). It continues
// while the writing warps wait for memory.
//
// Streams first compute short tiles, each by one warp. The warp combines the results of its slices in the
// same order as several streams would, so results are bitwise identical.
#include "backends/cuda/attention/decoding/decoding_launch.cuh"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/stages/visible_keys.cuh"
#include "backends/cuda/tile/right_operand.cuh"

namespace tg::cuda::attention {

namespace decoding {

using namespace tile;

// Streaming warp for bf16 and f16 (decoding_launch.cuh).
template <class S_, class At_, Options options_>
struct MultipliedByTensorCores {
  using S = S_;
  using At = At_;
  static constexpr Options options = options_;
  const u32 ring;
  VisibleKeys<At::rows>& seen;  // visible keys of the item's queries, if knows_seen
  bool knows_seen;
  RightOperand<At::rows, At::D> q;
  Accumulator<At::D, At::rows> o;
  ColumnSoftmax<At::rows> softmax;

  __device__ __forceinline__ MultipliedByTensorCores(unsigned char* memory, int stream)
      : ring(shared_address(memory) + stream * At::ring),
        seen(reinterpret_cast<VisibleKeys<At::rows>*>(memory + At::seen)[stream]) {}
  __device__ __forceinline__ void load_queries(const AttentionCall& x, const Item& item) {
    load(
        q, [&](int r) { return query<S>(x, item, r); }, x.d);
  }
  __device__ __forceinline__ void begin(const AttentionCall&, const Item&) { knows_seen = false, clear(); }
  __device__ __forceinline__ void clear() { o.fill(0), softmax = {}; }
  __device__ __forceinline__ void take(const AttentionCall& x, const Item& item, int key,
                                       const Score<S>& score, float factor, u32 keys, u32 values) {
    const SharedTile<At::D> k{ring + keys}, v{ring + values};
    Accumulator<At::keys, At::rows> s;
    s.fill(0);
    mma_ABt<S>(s, k, q);  // Aᵀ
    if constexpr (options == any) score.apply(s);
    if (!covers(item.every, key, At::keys)) {
      if (!knows_seen) {
        __syncwarp();  // no lane needs the previous item's `seen`
        seen.set_of_groups(Band(x, sequence_of_query(x, item.tile.b, 0)), group_of(x), item.tile.row0,
                           item.tile.rows);
        __syncwarp();
        knows_seen = true;
      }
      mask<false>(s, seen, 0, 0, key);
    }
    // c, π, Gᵀ rescaled, P = exp(A − c)
    softmax.step(s, factor, [&](int c, float by) { scale_column(o, c, by); });
    mma_AtBt<S>(o, v, right_operand<S>(s));  // Gᵀ += Vᵀ·Pᵀ
  }
  __device__ __forceinline__ void store_results(const StreamResults<At>& to) {
    decoding::store_results(to, softmax, o);
  }
  __device__ __forceinline__ void add_slice(const StreamResults<At>& to, float exponent) {
#pragma unroll
    for (int c = 0; c < o.columns; ++c) {
      const int query = lane_column() + o.column(c);
      const float sum = softmax.all(c);
      const float2 before = query < to.rows ? to.tops[query] : float2{0, 0};
      __syncwarp();
      if (query >= to.rows) continue;
      const Joined all(before.x, softmax.top[c], exponent);
      if (lane_row() == 0) to.tops[query] = all.stats(before.y, sum);
#pragma unroll
      for (int r = 0; r < o.rows; ++r) {
        float& g = to.sums[query * At::row + lane_row() + o.row(r)];
        g = all.of(g, o(r, c));
      }
    }
  }
};

}  // namespace decoding

void launch_decoding(const Stream& s, const AttentionCall& x, const Workspace& work, const Powers*) {
  if (decoding::is_of_latents(x)) return launch_latent_decoding(s, x, work);
  if (x.type == DType::f32) return launch_f32_decoding(s, x, work);
  if (decoding::uses_split_kv(x, work.parts, s.gpu)) return launch_decoding_split_kv(s, x, work);
  with_16_bits(x.type, [&](auto zero) {
    decoding::launch_call<decoding::MultipliedByTensorCores, decltype(zero)>(s, x, work);
  });
}

}  // namespace tg::cuda::attention
