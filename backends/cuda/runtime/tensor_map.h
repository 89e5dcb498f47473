// Tensor maps for bulk copies of tiles (TMA).
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include <tilegrad/core/base/dtype.h>

namespace tg::cuda {

// Returns the map of a tensor of 16-bit elements. The innermost axis is first and contiguous. The other axes
// have `strides`, in elements and in any order. Strides are non-zero multiples of 8. Boxes are copied in the
// layout of a SwizzledTile, and box[0] is 64. Elements outside of the tensor are zero. `data` is aligned to
// 16 bytes.
CUtensorMap tensor_map(DType type, const void* data, const std::array<std::int64_t, 4>& sizes,
                       const std::array<std::int64_t, 3>& strides, const std::array<int, 4>& box);

}  // namespace tg::cuda
