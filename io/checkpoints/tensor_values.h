// Values of the tensors of a file: rounded to another floating dtype, checked to be finite, and copied into a
// parameter.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/base/array.h>
#include <tilegrad/core/graph/parameter.h>
#include <tilegrad/io/files/safetensors.h>

namespace tg::io {

// The tensor's values, of this shape, rounded once to the nearest number of the dtype, of two the even one.
// Both dtypes are floating. Throws FormatError, beginning with `where` and `name`, for a number that is too
// large for the dtype; infinities and NaN are kept. Elements are numbered from `first`.
Array converted(const TensorView& from, const Shape& shape, DType dtype, const std::string& where,
                const std::string& name, std::int64_t first = 0);

// ---- Where values are not finite

// The first element that is a NaN or an infinity; none among integers. Looks at exponents only, so that it
// costs no more than reading the values.
std::optional<std::int64_t> first_not_finite(const Array& values);
// The same for elements of a dtype at any address.
std::optional<std::int64_t> first_not_finite(std::span<const std::byte> values, DType dtype);
// Throws FormatError, "<what> has a number that is not finite at element …", if there is one; the elements
// are numbered from `first`.
void require_finite(std::span<const std::byte> values, DType dtype, const std::string& what,
                    std::int64_t first = 0);

// ---- Values of a tensor into a parameter, piece by piece

// The tensor lies in the file and has the elements of the parameter from `first` on, its shape is not looked
// at, both are floating; with is_transposed it is [n, m] for a parameter [m, n], whole. Values are rounded as
// by converted(), and must be finite. Needs memory for a few pieces of 256 KiB. Throws FormatError, beginning
// with `where` and the parameter's name; Error if the file cannot be read.
void copy_tensor(const MappedFile& file, const TensorView& from, bool is_transposed, Parameter to,
                 const std::string& where, std::int64_t first = 0);

// The array as a tensor of a file.
TensorView view_of(const Array& array);

// "[2, 3]", as Shape::text() has it, for a file's tensor of any rank.
std::string shape_text(const std::vector<std::int64_t>& shape);

// The bytes of a tensor [n, m] as one of [m, n].
std::vector<std::byte> transposed(const TensorView& from);

}  // namespace tg::io
