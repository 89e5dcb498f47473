#include "backends/cuda/attention/tensor_map.h"

#include <cuda_runtime_api.h>

#include <tilegrad/core/base/error.h>

namespace tg::cuda::attention {

namespace {

// The driver's function, found at run time: programs start on machines without a driver.
auto* encode() {
  static const auto found = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &result);
    if (!f) throw DeviceError("the CUDA driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(f);
  }();
  return found;
}

}  // namespace

CUtensorMap tensor_map(DType type, const AttentionCall::Operand& x, std::int64_t batch, int heads, int rows,
                       int size, int box_rows, int box_heads, int box_batches) {
  const auto u = [](std::int64_t n) { return static_cast<cuuint64_t>(n); };
  const auto stride = [&](std::int64_t of, std::int64_t count) { return count == 1 ? u(16) : u(of) * 2; };
  const cuuint64_t sizes[] = {u(size), u(rows), u(heads), u(batch)},
                   strides[] = {stride(x.row, rows), stride(x.head, heads), stride(x.batch, batch)};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_heads),
                            static_cast<cuuint32_t>(box_batches)},
                   steps[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult e = encode()(
      &map, type == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
      x.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e != CUDA_SUCCESS)
    throw DeviceError("cuTensorMapEncodeTiled returned " + std::to_string(static_cast<int>(e)));
  return map;
}

}  // namespace tg::cuda::attention
