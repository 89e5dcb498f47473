// A call of flash_attn or paged_attn that bench measures: its sizes, its mask and its FLOPs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/attention_call.h"

namespace tg::bench {

struct AttentionCell {
  std::int64_t B = 1, H = 1, Hk = 1, L = 1, T = 1, d = 1, dv = 1;
  bool causal = false, nondeterministic = false,
       v_in_k = false;       // values are the first columns of keys
  std::int64_t window = -1;  // number of keys before a query's own position, and after it unless causal; -1:
                             // no window
  std::int64_t length = 0;   // kv_lengths of every batch entry, at most T; 0: all T keys, without kv_lengths
  bool ragged = false;       // kv_lengths are evenly spread from 1 to T, in random order
  std::int64_t softcap = 0;  // cap of the scores; 0: none
  std::int64_t page = 0;     // page size of a paged cache, whose pages are in random order, for paged_attn;
                             // 0: flash_attn

  // The name, such as "flash_attn causal" or "flash_attn causal window 512".
  std::string name() const;
  // The sizes, such as "4×32×4096×128". If two sizes differ, both are shown, as in "4×32/8×4096×192/128" for
  // B×H/Hk×L×d/dv. With a length, the text is like "4×32×1/128 of 4096×128", which is B×H×L/length of T×d.
  std::string shape() const;
  // The description that parse_cell() accepts. It is sent to other processes.
  std::string words() const;
  // The number of pairs of a query and a visible key per head.
  double pairs() const;
  // The number of keys per head: length, or T if length is 0. For ragged lengths it is the maximum.
  std::int64_t keys() const { return length > 0 ? length : T; }
  // kv_lengths of each batch entry.
  std::vector<std::int32_t> lengths() const;
  // Splits the batch into cells of one entry each if the entries' lengths differ.
  std::vector<AttentionCell> entries() const;
  // 2·B·H·pairs·(d + dv) for the forward pass. The backward pass, including its preparation and its last
  // step, counts as 2.5 times that.
  double flops(bool backward) const;
};

// The range of keys that query i sees.
KeyRange keys_seen(const AttentionCell& c, std::int64_t i);

// Parses a cell such as "B=4,H=32,Hk=8,L=4096,d=128,causal,window=512". L and d are required. Defaults: B and
// H are 1, Hk is H, T is L, and dv is d. With "length=100", 100 of T keys are valid. With "ragged", 1 to T
// keys are valid. "page=16" selects paged_attn. "softcap=50" caps scores. Throws Error for any other key or
// an invalid value.
AttentionCell parse_cell(const std::string& text);

// The cells of a suite:
// - "cpu" and "gpu" are the defaults for these devices. "gpu-nondeterministic" is "gpu" in nondeterministic
// mode.
// - "masks" has cells with windows, L ≠ T, d ≠ dv and grouped heads.
// - "few-queries" has cells with 1 to 512 queries per head.
// - "decode" and "gpu-decode" have one query and many keys. The mode decode measures them on a CPU and a GPU.
std::vector<AttentionCell> attention_suite(const std::string& name);

}  // namespace tg::bench
