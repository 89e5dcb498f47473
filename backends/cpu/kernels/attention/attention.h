// Fused attention on raw pointers and strides, forward and backward (FlashAttention-2) [Stratos,
// FlashAttention §D], of the call and by the mathematics of ops/attention_call.h.
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

}  // namespace TG_ISA
}  // namespace tg::cpu
