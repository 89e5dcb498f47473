// Fused attention on raw pointers and strides, forward and backward (FlashAttention-2)
// [Stratos, FlashAttention §D], and a forward for decoding. ops/attention_call.h defines the call and the
// mathematics.
#pragma once

#include "backends/cpu/kernel.h"
#include "ops/attention_call.h"

namespace tg::cpu {

struct AttentionKernel {
  // Returns sizes that depend only on shapes, types and options, never on the data.
  Scratch (*scratch)(const AttentionCall& x);
  // Every thread of the team calls it. A barrier must follow before the outputs are read. Results are bitwise
  // identical for any number of threads.
  void (*run)(const AttentionCall& x, Worker& worker);
  // Describes its tiles and copies for Kernel::choice.
  void (*choice)(const AttentionCall& x, char* text, std::size_t size);
};

namespace TG_ISA {

inline bool is_empty(const AttentionCall& x) {
  return x.B == 0 || x.H == 0 || x.L == 0;
}

// The scratch of a thread is a fixed number of tiles. The shared memory of the backward is O(B·H·L).
extern const AttentionKernel attention_forward, attention_backward;

// The forward of batch-invariant attention. A row's result depends bitwise only on its query, the keys that
// it attends to and their positions. This kernel computes all calls of paged_attn, and the calls of
// attention_forward for which it is the fastest. It supports any number of queries, and keys in pages, but no
// bias, dropout or packed sequences. With up to 8 queries per head, threads share scratch. Its size is
// B·H·L·(dv + 2) elements for each 512 keys of cache capacity, or for each 256 keys if d > 64.
extern const AttentionKernel attention_decode;

// Whether attention_forward delegates a call to attention_decode: at most 8 queries per head, at most 64 in
// all heads that share a key head, and no bias, dropout or packed sequences. This depends only on shapes and
// options, so all rows of a model use the same kernel, whatever their lengths.
bool is_decoding(const AttentionCall& x);

}  // namespace TG_ISA
}  // namespace tg::cpu
