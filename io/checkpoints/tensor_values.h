// Converts values of a file's tensors to a different floating dtype, checks that they are finite, and copies
// them to a parameter.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tilegrad/core/base/array.h>
#include <tilegrad/core/graph/parameter.h>
#include <tilegrad/io/files/safetensors.h>

namespace tg::io {

// Returns the tensor's values with this shape, rounded once to the dtype (nearest, ties to even). Both dtypes
// must be floating. Throws FormatError if a number is too large for the dtype. The message begins with
// `where` and `name`. Keeps infinities and NaN. Messages count elements starting at `first`.
Array converted(const TensorView& from, const Shape& shape, DType dtype, const std::string& where,
                const std::string& name, std::int64_t first = 0);

// ---- Values that are not finite

// Returns the index of the first NaN or infinity, or nothing. Integers are always finite. Tests only
// exponents, so it takes no longer than reading the values.
std::optional<std::int64_t> first_not_finite(const Array& values);
// Does the same for elements that may be unaligned.
std::optional<std::int64_t> first_not_finite(std::span<const std::byte> values, DType dtype);
// If a value is not finite, throws FormatError, "<what> has a number that is not finite at element …". The
// message counts elements starting at `first`.
void require_finite(std::span<const std::byte> values, DType dtype, const std::string& what,
                    std::int64_t first = 0);

// ---- Copying a tensor to a parameter, piece by piece

// Copies a floating tensor of the file to the elements of a floating parameter, starting at element `first`.
// Shapes may differ. If is_transposed is set, the tensor is [n, m] and the parameter [m, n]. Values are
// rounded as in converted() and must be finite. Needs memory for a few pieces of 256 KiB. Throws FormatError
// with a message that begins with `where` and the parameter's name, and Error if the file cannot be read.
void copy_tensor(const MappedFile& file, const TensorView& from, bool is_transposed, Parameter to,
                 const std::string& where, std::int64_t first = 0);

// Returns a view of the array as a tensor of a file.
TensorView view_of(const Array& array);

// Returns "[2, 3]", like Shape::text(), for a file's tensor of any rank.
std::string shape_text(const std::vector<std::int64_t>& shape);

// Returns the bytes of a tensor [n, m] transposed to [m, n].
std::vector<std::byte> transposed(const TensorView& from);

}  // namespace tg::io
