// Descriptions of tensors for bulk copies of tiles (TMA).
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include <tilegrad/core/base/dtype.h>

namespace tg::cuda {

// Of a tensor of 16-bit numbers whose innermost axis comes first and is contiguous; the other axes have
// `strides`, in numbers: multiples of 8, none 0, in any order. For copies of boxes in the layout of a
// SwizzledTile, box[0] being 64; what lies outside is zero. `data` is a multiple of 16 bytes.
CUtensorMap tensor_map(DType type, const void* data, const std::array<std::int64_t, 4>& sizes,
                       const std::array<std::int64_t, 3>& strides, const std::array<int, 4>& box);

}  // namespace tg::cuda
