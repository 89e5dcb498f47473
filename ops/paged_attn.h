// paged_attn computes attention of new tokens with the keys and values of a paged cache [Stratos,
// PagedAttention]. This header has the op, its options and the attributes that its kernels read.
#pragma once

#include <tilegrad/ops/flash_attn.h>

namespace tg {

// Options of paged_attn().
struct PagedAttentionOptions {
  std::optional<double> scale = {};     // factor of q·kᵀ; default: 1/√d
  std::int64_t window_left = -1;        // number of earlier keys that a query attends to; −1: all
  double softcap = 0;                   // as in AttentionOptions
  Tensor sink = {};                     // [H], as in AttentionOptions
  ScoreFunction score = {}, mask = {};  // as in AttentionOptions; position i of a query: see below
};

// Computes attention with a paged cache. q is [B, H, L, d]. The page pools are k [P, page, Hk, d] and v [P,
// page, Hk, dv], with any strides. All three have one floating dtype. v may be the first columns of k, as in
// MLA with absorbed projections; these columns are then read once. `table` is i32 [B, n]. `lengths` is i32
// [B], with values 0 … n·page. Sequence b has lengths[b] keys, including the new tokens. Key t is `k[table[b,
// t / page], t % page]`. Table entries and page slots beyond these keys are never read. Query i of L is the
// token at position lengths[b] − L + i and attends to keys up to that position. A query with a negative
// position is padding. It has o = 0, and ξ is −∞, or sink if there is a sink. Not differentiable. Throws
// ShapeError or DTypeError for other operands.
//
// Results are batch-invariant: a row depends only on its own query, keys and position. It is bitwise
// identical for any batch, page assignment, cache size and number of threads. A prompt may be processed in
// one step, in chunks or token by token.
AttentionResult paged_attn(TensorArg q, TensorArg k, TensorArg v, TensorArg table, TensorArg lengths,
                           const PagedAttentionOptions& options = {});

// Attributes of the op paged_attn; the fields are those of PagedAttentionOptions.
struct PagedAttentionAttrs {
  double scale = 1;                                            // factor of q·kᵀ, with the default resolved
  std::int64_t window_left = -1;                               // as in PagedAttentionOptions
  double softcap = 0;                                          // as in AttentionOptions
  bool has_sink = false;                                       // whether the operand `sink` exists
  std::shared_ptr<const AttentionExpression> expression = {};  // as in AttentionAttrs
  // Number of captured tensors.
  int captured() const { return expression ? expression->captured : 0; }
  // Lists the fields for printing and hashing (core/base/attrs.h).
  void fields(auto&& field) const {
    field("scale", scale, scale), field("window_left", window_left, -1), field("softcap", softcap, 0);
    field("sink", has_sink, false);
    const std::string none;
    field("score", expression ? expression->score_text : none, none);
    field("mask", expression ? expression->mask_text : none, none);
  }
};

// The attributes of a node or step that computes paged_attn; null for other ops.
const PagedAttentionAttrs* paged_attention_of(const Op& op, const Attrs& attrs);

}  // namespace tg
