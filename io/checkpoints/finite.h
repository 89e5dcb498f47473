// Where values are not finite.
#pragma once

#include <optional>
#include <span>
#include <string>

#include <tilegrad/core/base/array.h>

namespace tg::io {

// The first element that is a NaN or an infinity; none among integers. Looks at exponents only, so that it
// costs no more than reading the values.
std::optional<std::int64_t> first_not_finite(const Array& values);
// The same for elements of a dtype at any address.
std::optional<std::int64_t> first_not_finite(std::span<const std::byte> values, DType dtype);
// Throws FormatError, "<what> has a number that is not finite at element …", if there is one; the elements
// are numbered from `first`.
void require_finite(std::span<const std::byte> values, DType dtype, const std::string& what,
                    std::int64_t first = 0);

}  // namespace tg::io
