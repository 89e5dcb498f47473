// Ring attention (arXiv 2310.01889): flash_attn over a sequence whose tokens are divided among ranks. Keys
// and values go round, and each rank attends with its own queries to those that have come; the sequence is on
// no rank as a whole.
//
// Rank r of N has pieces r and 2N − 1 − r of 2N equal ones, in this order: under a causal mask each rank then
// has the same work with the keys of each other rank.
#pragma once

#include <cstdint>
#include <vector>

#include <tilegrad/ops/flash_attn.h>

namespace tg {

// Calls that differ from rank to rank are recorded on all of them.
inline constexpr int most_ring_ranks = 64;

// The positions, in a sequence of `length` tokens, of those that a rank has, in its order. Throws ShapeError
// unless there are at most most_ring_ranks, and `length`, below 2^31, is a multiple of 2·ranks (of one rank:
// any); Error for a rank that is not 0 … ranks − 1.
std::vector<std::int64_t> ring_positions(int rank, int ranks, std::int64_t length);
// The same in a graph, i64 [length / ranks], each rank its own.
Tensor ring_positions(Graph& graph, int ranks, std::int64_t length, Where where = Where::current());

// flash_attn of the whole sequence, of which each rank has its own tokens: q [B, H, L, d], k [B, Hk, L, d],
// v [B, Hk, L, dv] → o [B, H, L, dv] and ξ [B, H, L] of the rank's queries (varying → varying, see ranks.h).
// Masks count in positions of the whole sequence. L is even, and not 0. Of one rank it is flash_attn.
//
// With O_j, ξ_j of the queries with the keys of one call, results are merged in f32 (f64 for f64):
//   ξ' = max(ξ, ξ_j) + log(1 + exp(−|ξ − ξ_j|)),  O' = O + exp(ξ_j − ξ') ⊛ (O_j − O)
// The gradient needs no merging: with the merged O and ξ a call of flash_attn_backward gives the part of one
// call, whose z_K and z_V go round with their keys. Half types round each part, and are added in f32.
//
// Throws Error for dropout, bias, sink, cu_seqlens and kv_lengths; ShapeError for other shapes.
AttentionResult ring_attention(TensorArg q, TensorArg k, TensorArg v, int ranks,
                               const AttentionOptions& options = {});

}  // namespace tg
