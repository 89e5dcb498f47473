// Decoding: the forward where the queries of the heads that share keys are few, and keys may be many. It
// reads each key once, as fast as memory delivers it. Keys are cut in ranges of a fixed number, by which block
// computes each may change but no bit of the result; and no query's bits depend on others of the batch.
#pragma once

#include "backends/cuda/attention/workspace.h"

namespace tg::cuda::attention::decoding {

// Queries of the heads that share a key head, which are the rows of its products.
TG_HOST_DEVICE inline int rows_of(const AttentionCall& x) {
  return x.H / x.Hk * x.L;
}

constexpr int most_rows = 16, most_entries = 1024;  // entries of a batch: a block has a table of them

// Whether decoding takes a call that tensor cores take.
bool takes(const AttentionCall& x, const Gpu& gpu);

// The keys of a range: a function of how many there can be and of the head sizes, and neither of the batch
// nor of the GPU.
int keys_of_range(const AttentionCall& x);

// How many ranges there can be.
inline int ranges_of(const AttentionCall& x) {
  const int each = keys_of_range(x);
  return (x.T + each - 1) / each;
}

Workspace workspace(const AttentionCall& x, std::byte* base);

// For each key head, how many ranges have been written: zeros between calls, so it outlives them.
inline std::size_t bytes_of_counters(const AttentionCall& x) {
  return std::size_t(x.B) * x.Hk * sizeof(int);
}

}  // namespace tg::cuda::attention::decoding
