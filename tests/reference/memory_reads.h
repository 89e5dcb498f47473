// Computes the number of entries that attention reads from slow memory, for L = T and D = d [Stratos,
// Efficient Attention §1.3; Stratos, FlashAttention §2.2]. Also computes the size of an N×N score matrix
// [Attention To Tiling Part II].
#pragma once

#include "tests/reference/matrix.h"

namespace tg::reference {

// Standard attention must read the T×T matrix P again.
inline Index standard_attention_reads(Index T) {
  return T * T;
}

// FlashAttention-1 loads K and V once in the outer loop, and Q and O once per chunk: 2Td + 2Td ⌈T/Λ⌉, which
// is O(Td + T²d/Λ).
inline Index flash_attention_reads(Index T, Index d, Index chunk) {
  const Index chunks = (T + chunk - 1) / chunk;
  return 2 * T * d + 2 * T * d * chunks;
}

// Returns the largest chunk that fits in fast memory: Λ = M/(4d) for M entries.
inline Index largest_chunk(Index M, Index d) {
  return M / (4 * d);
}

// Returns the bytes of an N×N matrix of 16-bit elements.
inline Index score_matrix_bytes(Index N) {
  return 2 * N * N;
}

}  // namespace tg::reference
