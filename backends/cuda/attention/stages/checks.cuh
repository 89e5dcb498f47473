// Validates sequence boundaries, lengths and page tables. They are inputs, so their values may be out of
// range. Kernels never access memory outside the tensors, even if these checks fail.
#pragma once

#include "backends/cuda/kernels/elements.cuh"
#include "ops/attention_call.h"

namespace tg::cuda::attention {

// Number of entries to check. It is the size of the lengths [B] or of the page table [B, pages], whichever is
// larger.
TG_HOST_DEVICE inline i64 checked_places(const AttentionCall& x) {
  const i64 lengths = x.lengths ? x.B : 0, table = x.table ? x.B * x.pages : 0;
  return lengths > table ? lengths : table;
}
// Checks the length of batch entry b.
__device__ inline void check_length(const AttentionCall& x, const Faults& faults, i64 b) {
  if (!x.lengths) return;
  const i64 length =
      x.lengths_are_i64 ? static_cast<const i64*>(x.lengths)[b] : static_cast<const int*>(x.lengths)[b];
  faults.check_index(length, x.T + i64{1}, b);
}
// Checks the nth entry of the page table. It must be a page of the pool if the sequence has keys there.
__device__ inline void check_page(const AttentionCall& x, const Faults& faults, i64 n) {
  const i64 b = n / x.pages;
  if ((n - b * x.pages) * x.page < kv_length(x, static_cast<int>(b)))
    faults.check_index(x.table[n], x.pool, n);
}
// Checks the nth length and the nth table entry.
__device__ inline void check_place(const AttentionCall& x, const Faults& faults, i64 n) {
  if (n < x.B) check_length(x, faults, n);
  if (x.table && n < x.B * x.pages) check_page(x, faults, n);
}

// Checks all entries of the launch. Called by all `threads` threads of every block; `thread` is the caller's
// index.
__device__ inline void check_places(const AttentionCall& x, const Faults& faults, int thread, int threads) {
  const i64 all = checked_places(x), step = i64{gridDim.x} * threads;
#pragma unroll 1
  for (i64 n = i64{blockIdx.x} * threads + thread; n < all; n += step) check_place(x, faults, n);
}

}  // namespace tg::cuda::attention
