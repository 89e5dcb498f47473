// paged_attn: attention of new tokens with the keys and values of a cache that lies in pages
// [Stratos, PagedAttention], its options, and the attributes that its kernels read.
#pragma once

#include <tilegrad/ops/flash_attn.h>

namespace tg {

struct PagedAttentionOptions {
  std::optional<double> scale = {};  // default 1/√d
  std::int64_t window_left = -1;     // a query sees so many keys before its own; −1: all
  double softcap = 0;                // as in AttentionOptions
  Tensor sink = {};                  // [H], as in AttentionOptions
};

// q [B, H, L, d]; pools of pages k [P, page, Hk, d] and v [P, page, Hk, dv], which may be the first columns
// of k (MLA with absorbed projections: then they are read once); one floating dtype, any strides. Of sequence
// b there are lengths[b] keys, 0 … n·page, i32 [B], those of the new tokens included: key t is k[table[b, t /
// page], t % page], with table i32 [B, n]. What a sequence has no keys for, in the table and in its last
// page, is never used. Query i of L is the token at position lengths[b] − L + i and sees the keys up to
// there. Before position 0 it is padding: o = 0, ξ = −∞ (the sink's value if there is one).
//
// A row's bits depend on its own query, keys and position alone: they are the same in any batch, with any
// pages and room for pages, whether a prompt is read at once, in parts or token by token, and on any number
// of threads.
AttentionResult paged_attn(TensorArg q, TensorArg k, TensorArg v, TensorArg table, TensorArg lengths,
                           const PagedAttentionOptions& options = {});

struct PagedAttentionAttrs {
  double scale = 1;
  std::int64_t window_left = -1;
  double softcap = 0;
  bool has_sink = false;
  void fields(auto&& field) const {
    field("scale", scale, scale), field("window_left", window_left, -1), field("softcap", softcap, 0);
    field("sink", has_sink, false);
  }
};

// The attributes of a node or step that computes paged_attn; null for other ops.
const PagedAttentionAttrs* paged_attention_of(const Op& op, const Attrs& attrs);

}  // namespace tg
