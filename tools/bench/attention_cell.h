// One call of flash_attn or paged_attn that bench measures: its sizes, its mask, and how many FLOPs that is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/attention_call.h"

namespace tg::bench {

struct AttentionCell {
  std::int64_t B = 1, H = 1, Hk = 1, L = 1, T = 1, d = 1, dv = 1;
  bool causal = false, nondeterministic = false,
       v_in_k = false;       // v_in_k: values are the first columns of keys
  std::int64_t window = -1;  // keys before a query's own position, and as many after it unless causal
  std::int64_t length = 0;   // kv_lengths of every batch entry, at most T; 0: all T keys, without kv_lengths
  bool ragged = false;       // kv_lengths from 1 to T, evenly and in any order
  std::int64_t softcap = 0;  // of scores; 0: none
  std::int64_t page = 0;     // of a cache in pages, those of a text in any order: paged_attn; 0: none

  // "flash_attn causal", "flash_attn causal window 512", …
  std::string name() const;
  // "4×32×4096×128", with both sizes where two differ: "4×32/8×4096×192/128" is B×H/Hk×L/T×d/dv. With a
  // length it is "4×32×128 of 4096×128".
  std::string shape() const;
  // As parse_cell reads it: what another process is told.
  std::string words() const;
  // Visible (query, key) pairs of a head.
  double pairs() const;
  // Keys of a head: length, or T. Of ragged ones the most.
  std::int64_t keys() const { return length > 0 ? length : T; }
  // kv_lengths of each batch entry.
  std::vector<std::int32_t> lengths() const;
  // What the entries are: where they differ, a cell of each.
  std::vector<AttentionCell> entries() const;
  // 2·B·H·pairs·(d + dv); the backward, with all that runs before and after it, counts 2.5 times as many.
  double flops(bool backward) const;
};

// The keys that query i sees.
KeyRange keys_seen(const AttentionCell& c, std::int64_t i);

// "B=4,H=32,Hk=8,L=4096,d=128,causal,window=512". L and d are required; B and H are 1 by default, Hk is H, T
// is L and dv is d; "length=100" of T keys are valid, of "ragged" ones 1 to T, "page=16" is of paged_attn,
// "softcap=50" caps scores. Throws Error for anything else.
AttentionCell parse_cell(const std::string& text);

// Sets of cells by name: "cpu" and "gpu" are what those devices measure by default, "gpu-free-order" is
// the latter in free order, "masks" has windows, L ≠ T, d ≠ dv and grouped heads, "few-queries" has heads of
// 1 to 512 queries. "decode" is what the mode decode measures on the CPU, "gpu-decode" on a GPU: one query,
// many keys.
std::vector<AttentionCell> attention_suite(const std::string& name);

}  // namespace tg::bench
