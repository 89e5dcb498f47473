// Fused attention on raw pointers and strides, forward and backward (FlashAttention-2) [Stratos,
// FlashAttention §D], and the forward of decoding, of the call and by the mathematics of
// ops/attention_call.h.
#pragma once

#include "backends/cpu/kernels/gemm.h"
#include "ops/attention_call.h"

namespace tg::cpu {

namespace TG_ISA {

// Sizes depend on shapes, types, options and the number of threads, never on what pointers hold.
ScratchSize attention_forward_scratch(const AttentionCall& x, int threads);
ScratchSize attention_backward_scratch(const AttentionCall& x, int threads);

// Every thread of the team calls it; a barrier must follow before the outputs are read. The same bits for any
// number of threads. Shared memory of the backward is O(B·H·L); scratch of a thread is a fixed number of
// tiles.
void attention_forward(const AttentionCall& x, Worker& worker);
void attention_backward(const AttentionCall& x, Worker& worker);

// Their tiles and what they copy, in words: Kernel::choice.
void attention_forward_choice(const AttentionCall& x, char* text, std::size_t size);
void attention_backward_choice(const AttentionCall& x, char* text, std::size_t size);

// The forward of attention for which the bits of a row depend on nothing but its query, the keys that it sees
// and their positions. attention_forward leaves the calls to it that it computes fastest; paged_attn all.
//
// Whether attention_forward leaves a call to it: at most 8 queries in a head, and 64 in all heads that share
// a key head; no bias, dropout or packed sequences. It is so by shapes and options alone: all rows of a model
// take the same path, whatever their lengths.
bool is_decoding(const AttentionCall& x);

// As attention_forward_scratch, attention_forward and attention_forward_choice, for any number of queries
// but without bias, dropout and packed sequences, and for keys in pages. Shared scratch with up to 8 queries
// in a head is B·H·L·(dv + 2) numbers for every 512 keys (256 where d > 64) that there is room for.
ScratchSize attention_decode_scratch(const AttentionCall& x);
void attention_decode(const AttentionCall& x, Worker& worker);
void attention_decode_choice(const AttentionCall& x, char* text, std::size_t size);

}  // namespace TG_ISA
}  // namespace tg::cpu
