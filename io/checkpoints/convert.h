// Values of a file in another floating dtype.
#pragma once

#include <string>

#include <tilegrad/core/base/array.h>
#include <tilegrad/io/files/safetensors.h>

namespace tg::io {

// The tensor's values, of this shape, rounded once to the nearest number of the dtype, of two the even one.
// Both dtypes are floating. Throws FormatError, beginning with `where` and `name`, for a number that is too
// large for the dtype; infinities and NaN are kept. Elements are numbered from `first`.
Array converted(const TensorView& from, const Shape& shape, DType dtype, const std::string& where,
                const std::string& name, std::int64_t first = 0);

}  // namespace tg::io
