// The forward of attention for which the bits of a row depend on nothing but its query, the keys that it sees
// and their positions. attention_forward leaves the calls to it that it computes fastest; paged_attn all.
#pragma once

#include "backends/cpu/kernels/attention/attention.h"

namespace tg::cpu::TG_ISA {

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

}  // namespace tg::cpu::TG_ISA
