// The forward of attention for few queries, as in decoding: attention_forward leaves the calls to it that it
// takes.
#pragma once

#include "backends/cpu/kernels/attention/attention.h"

namespace tg::cpu::TG_ISA {

// At most 8 queries in a head, and 64 in all heads that share a key head; no bias, dropout or packed
// sequences. It is so by shapes and options alone: all rows of a model take the same path, whatever their
// lengths.
bool is_decoding(const AttentionCall& x);

// As attention_forward_scratch, attention_forward and attention_forward_choice, for calls that are decoding.
// Shared scratch is B·H·L·(dv + 2) numbers for every 512 keys (256 where d > 64) that there is room for.
ScratchSize attention_decode_scratch(const AttentionCall& x);
void attention_decode(const AttentionCall& x, Worker& worker);
void attention_decode_choice(const AttentionCall& x, char* text, std::size_t size);

}  // namespace tg::cpu::TG_ISA
