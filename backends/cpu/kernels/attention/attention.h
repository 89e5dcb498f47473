// Fused attention on raw pointers and strides, forward and backward (FlashAttention-2) [Stratos,
// FlashAttention §D], and the forward of decoding, of the call and by the mathematics of
// ops/attention_call.h.
#pragma once

#include "backends/cpu/kernel.h"
#include "ops/attention_call.h"

namespace tg::cpu {

struct AttentionKernel {
  // Sizes depend on shapes, types and options, never on what pointers hold.
  Scratch (*scratch)(const AttentionCall& x);
  // Every thread of the team calls it; a barrier must follow before the outputs are read. The same bits for
  // any number of threads.
  void (*run)(const AttentionCall& x, Worker& worker);
  // Its tiles and what it copies, in words: Kernel::choice.
  void (*choice)(const AttentionCall& x, char* text, std::size_t size);
};

namespace TG_ISA {

inline bool is_empty(const AttentionCall& x) {
  return x.B == 0 || x.H == 0 || x.L == 0;
}

// Scratch of a thread is a fixed number of tiles; shared memory of the backward is O(B·H·L).
extern const AttentionKernel attention_forward, attention_backward;

// The forward of attention for which the bits of a row depend on nothing but its query, the keys that it sees
// and their positions. attention_forward leaves the calls to it that it computes fastest; paged_attn all.
// For any number of queries, but without bias, dropout and packed sequences, and for keys in pages. Shared
// scratch with up to 8 queries in a head is B·H·L·(dv + 2) numbers for every 512 keys (256 where d > 64) that
// there is room for.
extern const AttentionKernel attention_decode;

// Whether attention_forward leaves a call to attention_decode: at most 8 queries in a head, and 64 in all
// heads that share a key head; no bias, dropout or packed sequences. It is so by shapes and options alone:
// all rows of a model take the same path, whatever their lengths.
bool is_decoding(const AttentionCall& x);

}  // namespace TG_ISA
}  // namespace tg::cpu
