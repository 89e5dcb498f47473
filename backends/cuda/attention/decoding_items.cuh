// The items of work of decoding. An item is a range of the keys of a batch entry, for all queries of a key
// head. Which items there are depends on how many keys each entry has, which only the GPU knows: each block
// makes a table of the entries, by which it finds any item.
#pragma once

#include "backends/cuda/attention/decoding_plan.h"
#include "backends/cuda/tile/accumulator.cuh"

namespace tg::cuda::attention::decoding {

struct Item {
  int b, head;                     // key head
  int range, first_range, ranges;  // which range, and those of the entry
  KeyRange keys;                   // of the range, that some query sees
};

struct Entry {
  int before;     // ranges of all entries before but the last one of each
  KeyRange keys;  // that some query sees; an entry without any has one range, of none

  __device__ __forceinline__ int first(int range) const { return keys.from / range; }
  __device__ __forceinline__ int last(int range) const {
    return keys.from < keys.to ? (keys.to - 1) / range : first(range);
  }
};

// In this order: all ranges but the last of each entry, which may be short and so come at the end. Key heads
// of a range are neighbours.
struct Items {
  Entry* entries;  // [B + 1], in shared memory
  int range, entry_count, heads;
  int count, not_last;

  // By the whole block.
  __device__ Items(const Plan& x, Entry* entries)
      : entries(entries), range(x.range), entry_count(x.B), heads(x.Hk) {
#pragma unroll 1
    for (int b = threadIdx.x; b <= entry_count; b += blockDim.x) {
      Entry e{0, {0, 0}};
      if (b < entry_count) e.keys = x.band(b).some_of(0, x.L - 1);
      e.before = e.last(range) - e.first(range);
      entries[b] = e;
    }
    __syncthreads();
    if (threadIdx.x < 32) sum_up();
    __syncthreads();
    not_last = entries[entry_count].before, count = (not_last + entry_count) * heads;
  }

  // Whether no block has more than one.
  __device__ bool alone() const { return count <= static_cast<int>(gridDim.x); }
  __device__ Item at(int n) const {
    Item item;
    item.head = n % heads;
    const int nth = n / heads;
    item.b = nth < not_last ? entry_of(nth) : nth - not_last;
    const Entry e = entries[item.b];
    const int last = e.last(range);
    item.first_range = e.first(range), item.ranges = last - item.first_range + 1;
    item.range = nth < not_last ? item.first_range + nth - e.before : last;
    item.keys = {max(e.keys.from, item.range * range), min(e.keys.to, (item.range + 1) * range)};
    return item;
  }

 private:
  // Each entry's count of ranges becomes the sum of those before; by a warp.
  __device__ void sum_up() {
    int sum = 0;
#pragma unroll 1
    for (int b0 = 0; b0 <= entry_count; b0 += 32) {
      const int b = b0 + tile::lane_id(), own = b <= entry_count ? entries[b].before : 0;
      int up_to = own;
#pragma unroll
      for (int by = 1; by < 32; by *= 2) {
        const int other = __shfl_up_sync(~0u, up_to, by);
        if (tile::lane_id() >= by) up_to += other;
      }
      if (b <= entry_count) entries[b].before = sum + up_to - own;
      sum += __shfl_sync(~0u, up_to, 31);
    }
  }
  // The last entry before which there are no more ranges than that.
  __device__ int entry_of(int nth) const {
    int low = 0, high = entry_count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (entries[middle].before <= nth ? low : high) = middle;
    }
    return low;
  }
};

}  // namespace tg::cuda::attention::decoding
