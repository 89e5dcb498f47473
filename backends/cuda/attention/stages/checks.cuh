// What a run of attention is rejected for: its sequence boundaries, lengths and tables are inputs, and may
// exceed the tensors. Kernels stay within these whatever they find.
#pragma once

#include "backends/cuda/kernels/elements.cuh"
#include "ops/attention_call.h"

namespace tg::cuda::attention {

// Of how many places a cache has numbers to be checked: lengths [B] and a table [B, pages].
TG_HOST_DEVICE inline i64 checked_places(const AttentionCall& x) {
  const i64 lengths = x.lengths ? x.B : 0, table = x.table ? x.B * x.pages : 0;
  return lengths > table ? lengths : table;
}
// The length of a batch entry.
__device__ inline void check_length(const AttentionCall& x, const Faults& faults, i64 b) {
  if (!x.lengths) return;
  const i64 length =
      x.lengths_are_i64 ? static_cast<const i64*>(x.lengths)[b] : static_cast<const int*>(x.lengths)[b];
  faults.check_index(length, x.T + i64{1}, b);
}
// The nth number of a table, which must have a page of the pool wherever there are keys.
__device__ inline void check_page(const AttentionCall& x, const Faults& faults, i64 n) {
  const i64 b = n / x.pages;
  if ((n - b * x.pages) * x.page < kv_length(x, static_cast<int>(b)))
    faults.check_index(x.table[n], x.pool, n);
}
// The nth of all places.
__device__ inline void check_place(const AttentionCall& x, const Faults& faults, i64 n) {
  if (n < x.B) check_length(x, faults, n);
  if (x.table && n < x.B * x.pages) check_page(x, faults, n);
}

// All of them, by `threads` threads of each block of a launch, of which this is one.
__device__ inline void check_places(const AttentionCall& x, const Faults& faults, int thread, int threads) {
  const i64 all = checked_places(x), step = i64{gridDim.x} * threads;
#pragma unroll 1
  for (i64 n = i64{blockIdx.x} * threads + thread; n < all; n += step) check_place(x, faults, n);
}

}  // namespace tg::cuda::attention
