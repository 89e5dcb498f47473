#include "backends/cuda/attention/tensor_map.h"

#include "backends/cuda/runtime/tensor_map.h"

namespace tg::cuda::attention {

CUtensorMap tensor_map(DType type, const AttentionCall::Operand& x, std::int64_t batch, int heads, int rows,
                       int size, int box_rows, int box_heads, int box_batches) {
  const auto stride = [&](std::int64_t of, std::int64_t count) { return count == 1 ? 8 : of; };
  return cuda::tensor_map(type, x.data, {size, rows, heads, batch},
                          {stride(x.row, rows), stride(x.head, heads), stride(x.batch, batch)},
                          {64, box_rows, box_heads, box_batches});
}

}  // namespace tg::cuda::attention
