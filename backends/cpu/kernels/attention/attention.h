// Fused attention on raw pointers and strides, forward and backward (FlashAttention-2)
// [Stratos, FlashAttention §D], and a forward for decoding. ops/attention_call.h defines the call and the
// mathematics.
#pragma once

#include "backends/cpu/kernel.h"
#include "ops/attention_call.h"

namespace tg::cpu {

struct AttentionKernel {
  // Returns the scratch sizes. They depend only on shapes, types and options, not on the data.
  Scratch (*scratch)(const AttentionCall& x);
  // Every thread of the team calls this function. A barrier must follow before the outputs are read. Results
  // are bitwise identical for any number of threads.
  void (*run)(const AttentionCall& x, Worker& worker);
  // Describes its tiles and copies for Kernel::choice.
  void (*choice)(const AttentionCall& x, char* text, std::size_t size);
};

namespace TG_ISA {

inline bool is_empty(const AttentionCall& x) {
  return x.B == 0 || x.H == 0 || x.L == 0;
}

// Each thread needs scratch for a fixed number of tiles. The backward also needs shared memory of size
// O(B·H·L).
extern const AttentionKernel attention_forward, attention_backward;

// The forward of batch-invariant attention. The result of a row is a function of its query, the visible keys
// and values, and their positions. It is bitwise independent of the rest of the batch. This kernel computes
// all calls of paged_attn, and the calls of attention_forward for which it is fastest. It supports any number
// of queries, and keys in pages, but no bias, dropout or packed sequences. With up to 8 queries per head,
// threads share scratch memory. This memory has B·H·L·(dv + 2) elements per 512 keys of cache capacity, or
// per 256 keys if d > 64.
extern const AttentionKernel attention_decode;

// Whether attention_forward delegates a call to attention_decode. Such a call has no bias, dropout or packed
// sequences. It has at most 8 queries per head, and at most 64 queries in all heads that share a key head.
// The choice depends only on shapes and options, so sequences of any length use the same kernel.
bool is_decoding(const AttentionCall& x);

}  // namespace TG_ISA
}  // namespace tg::cpu
