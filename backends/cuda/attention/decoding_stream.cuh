// What a streaming warp of decoding does, item after item: it waits for slices of keys and values, multiplies
// them, and leaves its sums to the writing warps. What it multiplies with is a template argument, a struct
// with the element type S, the shape At and, of the item that the stream is at,
//
//   Multiplied(x, plan, memory, stream)
//   load_queries(item)
//   begin()                            no slice has been added
//   add(item, key, k, v)               the slice from `key` on, whose stage lies so far into the stream's
//   ring leave(left), add_to(left)          c, π and G; of a short tile those of one slice, joined with what
//   is there
#pragma once

#include "backends/cuda/attention/decoding_loader.cuh"
#include "backends/cuda/attention/decoding_merge.cuh"
#include "backends/cuda/attention/decoding_plan.cuh"

namespace tg::cuda::attention::decoding {

// A warp that has items: its short items and then all others of the block. `alone`: there is one of these.
template <class Multiplied, class Cache>
__device__ __forceinline__ void stream_keys(const AttentionCall& x, const Plan<Cache>& plan,
                                            const Items<Cache>& items, unsigned char* memory, int stream,
                                            bool alone) {
  using S = typename Multiplied::S;
  using At = typename Multiplied::At;
  const auto left_sums = [&] { return Left<At>(memory, stream, At::rows_of_tile(x)); };  // not in registers
  int n = items.first(stream);
  Loader<S, At, Cache> loader(x, plan.cache, items, stream, shared_address(memory) + stream * At::ring);
  Multiplied product(x, plan, memory, stream);
  await_kernels_before();
#pragma unroll
  for (int n = 0; n < At::stages; ++n) loader.ask();
  const Item* item = items.kept(n, stream);
  product.load_queries(*item);
  int slot = 0;
  bool first = true;
#pragma unroll 1
  while (n < items.count) {
    if (item->is_short) begin_short(left_sums());
    product.begin();
#pragma unroll 1
    for (int key = first_key<At>(*item, stream); key < item->keys.to; key += step_of<At>(*item)) {
      ptx::cp_async_wait<At::stages - 1>();
      __syncwarp();
      const u32 k = slot * At::stage;
      slot = slot + 1 < At::stages ? slot + 1 : 0;
      product.add(*item, key, k, loader.values(k).base);
      __syncwarp();  // no lane needs the slice
      loader.ask();
      if (item->is_short) product.add_to(left_sums()), product.begin();
    }
    const bool is_short = item->is_short;
    if (is_short) put_short<S>(x, *item, left_sums());
    // Queries of the next item arrive while this one's sums are left.
    n = items.after(n, At::streams);
    if (n < items.count) {
      item = items.kept(n, stream);
      product.load_queries(*item);
    }
    if (is_short) continue;
    if (!first) ptx::bar_sync(may_leave + stream, 32 * (At::writers + 1));
    first = false;
    product.leave(left_sums());
    if (!alone) ptx::bar_arrive(left, At::threads);
  }
}

}  // namespace tg::cuda::attention::decoding
