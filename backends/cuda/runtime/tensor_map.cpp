#include "backends/cuda/runtime/tensor_map.h"

#include <cuda_runtime_api.h>

#include <string>

#include <tilegrad/core/base/error.h>

namespace tg::cuda {

namespace {

// The driver's function. It is looked up at run time, so that programs also start on machines without a
// driver.
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

CUtensorMap tensor_map(DType type, const void* data, const std::array<std::int64_t, 4>& sizes,
                       const std::array<std::int64_t, 3>& strides, const std::array<int, 4>& box) {
  const cuuint32_t steps[] = {1, 1, 1, 1};
  cuuint64_t size[4], stride[3];
  cuuint32_t of_box[4];
  for (std::size_t n = 0; n < 4; ++n) {
    size[n] = static_cast<cuuint64_t>(sizes[n]), of_box[n] = static_cast<cuuint32_t>(box[n]);
    if (n > 0) stride[n - 1] = static_cast<cuuint64_t>(strides[n - 1]) * 2;
  }
  CUtensorMap map;
  const CUresult e = encode()(
      &map, type == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
      const_cast<void*>(data), size, stride, of_box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e != CUDA_SUCCESS)
    throw DeviceError("cuTensorMapEncodeTiled returned " + std::to_string(static_cast<int>(e)));
  return map;
}

}  // namespace tg::cuda
