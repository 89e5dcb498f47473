// Descriptions of tensors for bulk copies of tiles (TMA).
#pragma once

#include <cuda.h>

#include "ops/attention_call.h"

namespace tg::cuda::attention {

// Of an operand [batch, heads, rows, size] of 16-bit numbers, for copies of `box_rows` (at most 256) rows by
// 64 columns in the layout of a SwizzledTile, one after the other if a box is of several heads or batch
// entries; what lies outside is zero. Rows begin at multiples of 16 bytes;
// no stride is 0.
CUtensorMap tensor_map(DType type, const AttentionCall::Operand& x, std::int64_t batch, int heads, int rows,
                       int size, int box_rows, int box_heads = 1, int box_batches = 1);

}  // namespace tg::cuda::attention
