// How results of decoding come together, each time in a fixed order: those of a block's streams, and then
// those of the ranges, which the block that is the last to compute one of a key head merges.
#pragma once

#include "backends/cuda/attention/decoding_items.cuh"
#include "backends/cuda/attention/decoding_shape.h"
#include "backends/cuda/attention/decoding_softmax.cuh"
#include "backends/cuda/attention/score.cuh"
#include "backends/cuda/tile/shared_sm80.cuh"

namespace tg::cuda::attention::decoding {

// Results of a range.
struct Partial {
  float *o, *xi;
  int rows, dv;
  __device__ float* at(int row, int column) const { return o + i64(row) * dv + column; }
  // Of the nth range after this one.
  __device__ Partial after(int nth) const {
    return {o + i64(nth) * rows * dv, xi + i64(nth) * rows, rows, dv};
  }
};
__device__ inline Partial partial(const Plan& x, int b, int head, int range) {
  return Partial{x.range_o, x.range_xi, x.rows(), x.dv}.after((b * x.Hk + head) * x.ranges + range);
}

// O and ξ of four columns of a row of a key head: queries of its first head, then those of its second.
template <class S>
__device__ void put(const Plan& x, int b, int key_head, int row, int column, MergedSets& all) {
  const int head = key_head * (x.H / x.Hk) + row / x.L, i = row % x.L;
  if (x.sink) all.add_sink(widen(static_cast<const S*>(x.sink)[head]) * static_cast<float>(log2_e));
  const float4 o = all.finished();
  *reinterpret_cast<uint2*>(x.o.at<S>(b, head) + i * x.o.row + column) = {tile::pack(o.x, o.y, S()),
                                                                         tile::pack(o.z, o.w, S())};
  if (column == 0)
    x.lse[(i64(b) * x.H + head) * x.L + i] = all.xi() * static_cast<float>(ln_2);
}

// Four columns of a row, over the block's streams.
template <class At>
__device__ __forceinline__ MergedSets merge_streams(const unsigned char* memory, int rows, int row,
                                                    int column) {
  float c[At::streams], pi[At::streams];
  float4 g[At::streams];
#pragma unroll
  for (int n = 0; n < At::streams; ++n) {
    const int at = n * rows + row;
    const float2 top = reinterpret_cast<const float2*>(memory + At::tops)[at];
    c[n] = top.x, pi[n] = top.y;
    g[n] = *reinterpret_cast<const float4*>(memory + At::sums(rows) + (at * At::row + column) * 4);
  }
  MergedSets all;
  all.add(c, pi, g);
  return all;
}

// The same over ranges, which other blocks may have computed: read past the first-level cache, `together` at a
// time.
template <int together>
__device__ __forceinline__ MergedSets merge_ranges(const Partial& first, int ranges, int row, int column) {
  const float *xi_of = first.xi + row, *o_of = first.at(row, column);
  const int between = first.rows * first.dv;
  MergedSets all;
#pragma unroll 1
  for (int n0 = 0; n0 < ranges; n0 += together) {
    float xi[together], one[together];
    float4 o[together];
#pragma unroll
    for (int n = 0; n < together; ++n, xi_of += first.rows, o_of += between) {
      const bool there = n0 + n < ranges;
      one[n] = 1;
      xi[n] = there ? __ldcg(xi_of) : -INFINITY;
      o[n] = there ? __ldcg(reinterpret_cast<const float4*>(o_of)) : float4{0, 0, 0, 0};
    }
    all.add(xi, one, o);
  }
  return all;
}

// Items whose ranges have all been written, and wait for the end of the block to be merged by all its warps.
struct Pending {
  static constexpr int most = 8;
  int count, items[most];
};

// What streams leave becomes results of ranges, or of the call. Each item has one of the writing warps. That
// takes long, as the warp waits until what it has written is seen everywhere; but meanwhile others write.
template <class S, class At>
struct Writer {
  static constexpr int quads = At::D / 4;
  const Plan& x;
  const Items& items;
  unsigned char* const memory;
  const int rows;
  Pending& pending;

  __device__ Writer(const Plan& x, const Items& items, unsigned char* memory)
      : x(x),
        items(items),
        memory(memory),
        rows(x.rows()),
        pending(*reinterpret_cast<Pending*>(memory + At::pending)) {}

  // The nth writing warp.
  __device__ void run(int nth) {
    if (nth == 0) let_streams_leave();
#pragma unroll 1
    for (int n = blockIdx.x + nth * gridDim.x; n < items.count; n += At::writers * gridDim.x) {
      const Item item = items.at(n);
      ptx::bar_sync(left + nth, 32 * (At::streams + 1));
      write(item, tile::lane_id(), 32);
      if (n + static_cast<int>(gridDim.x) < items.count) let_streams_leave();
      if (item.ranges == 1) continue;
      __syncwarp();
      int last = 0;
      if (tile::lane_id() == 0) last = is_last(item);
      if (!__shfl_sync(~0u, last, 0)) continue;
      __syncwarp();  // what the first lane has seen, all see
      // The last items of the block would keep it waiting for this warp.
      if (n + Pending::most / 2 * static_cast<int>(gridDim.x) < items.count)
        merge(item, tile::lane_id(), 32);
      else if (tile::lane_id() == 0)
        pending.items[atomicAdd(&pending.count, 1)] = n;
    }
  }
  // The same by all warps of a block that has one item, when streams have left it.
  __device__ void run_all() {
    const int n = blockIdx.x;
    const Item item = items.at(n);
    write(item, threadIdx.x, At::threads);
    if (item.ranges == 1) return;
    __syncthreads();
    if (threadIdx.x == 0 && is_last(item)) pending.items[pending.count++] = n;
  }
  // By all warps, after all items.
  __device__ void merge_pending() {
#pragma unroll 1
    for (int n = 0; n < pending.count; ++n) merge(items.at(pending.items[n]), threadIdx.x, At::threads);
  }

 private:
  __device__ __forceinline__ void let_streams_leave() {
#pragma unroll
    for (int stream = 0; stream < At::streams; ++stream) ptx::bar_arrive(may_leave + stream, 64);
  }
  // f(row, column) for each quad of columns that the thread has.
  template <class F>
  __device__ __forceinline__ void for_each_quad(int thread, int threads, F&& f) {
#pragma unroll 1
    for (int i = thread; i < rows * quads; i += threads)
      if (const int column = i % quads * 4; column < x.dv) f(i / quads, column);
  }
  __device__ __forceinline__ void write(const Item& item, int thread, int threads) {
    const Partial own = partial(x, item.b, item.head, item.range);
    const std::uint64_t stays = ptx::evict_last();
    for_each_quad(thread, threads, [&](int row, int column) {
      MergedSets all = merge_streams<At>(memory, rows, row, column);
      if (item.ranges == 1) return put<S>(x, item.b, item.head, row, column, all);
      ptx::st_global_v4(own.at(row, column), all.finished(), stays);
      if (column == 0) own.xi[row] = all.xi();
    });
  }
  // Whether all other ranges of the item's key head have been written, which then are seen. The counter is
  // zero again.
  __device__ __forceinline__ bool is_last(const Item& item) {
    int* const counter = x.counters + item.b * x.Hk + item.head;
    const bool last = ptx::add_acq_rel(counter, 1) == item.ranges - 1;
    if (last) *counter = 0;
    return last;
  }
  __device__ __forceinline__ void merge(const Item& item, int thread, int threads) {
    const Partial first = partial(x, item.b, item.head, item.first_range);
    for_each_quad(thread, threads, [&](int row, int column) {
      MergedSets all = merge_ranges<2 * At::streams>(first, item.ranges, row, column);
      put<S>(x, item.b, item.head, row, column, all);
    });
  }
};

}  // namespace tg::cuda::attention::decoding
