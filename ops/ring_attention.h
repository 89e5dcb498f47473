// Ring attention (arXiv 2310.01889): flash_attn over a sequence whose tokens are split across ranks. Keys and
// values are sent around the ring. Each rank computes attention of its own queries with the keys that it
// receives, so no rank stores the whole sequence.
//
// A sequence is cut into 2N equal pieces for N ranks. Rank r has pieces r and 2N − 1 − r, in this order.
// Under a causal mask each rank then has the same amount of work with the keys of every other rank.
#pragma once

#include <cstdint>
#include <vector>

#include <tilegrad/ops/flash_attn.h>

namespace tg {

// Maximum number of ranks. It is limited because calls that differ between ranks are recorded on every rank.
inline constexpr int most_ring_ranks = 64;

// Returns the positions of a rank's tokens in a sequence of `length` tokens, in the rank's order. Throws
// ShapeError unless `ranks` is 1 to most_ring_ranks and `length` is below 2^31. With several ranks, `length`
// must also be a multiple of 2·ranks. Throws Error unless `rank` is 0 … ranks − 1.
std::vector<std::int64_t> ring_positions(int rank, int ranks, std::int64_t length);
// Returns the same positions as a tensor, i64 [length / ranks]. The values differ between ranks.
Tensor ring_positions(Graph& graph, int ranks, std::int64_t length, Where where = Where::current());

// Computes flash_attn of the whole sequence: q [B, H, L, d], k [B, Hk, L, d], v [B, Hk, L, dv] → o [B, H, L,
// dv] and ξ [B, H, L], where L counts the tokens of this rank (varying → varying, see ranks.h). Masks use
// positions in the whole sequence. L is even and at least 2. With one rank it is flash_attn().
//
// Let O_j and ξ_j be the results of one call over the keys of one rank. They are merged in f32 (f64 for f64):
// - ξ' = max(ξ, ξ_j) + log(1 + exp(−|ξ − ξ_j|))
// - O' = O + exp(ξ_j − ξ') ⊛ (O_j − O)
//
// The gradient needs no merging. From the merged O and ξ, flash_attn_backward computes each call's part of
// the gradient. z_K and z_V of a call are sent around the ring together with the keys. In 16-bit dtypes, each
// part is rounded, and the parts are added in f32.
//
// Throws Error for dropout, bias, sink, cu_seqlens, kv_lengths, and score and mask functions, and ShapeError
// for other shapes.
AttentionResult ring_attention(TensorArg q, TensorArg k, TensorArg v, int ranks,
                               const AttentionOptions& options = {});

}  // namespace tg
