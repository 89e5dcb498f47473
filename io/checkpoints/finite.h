// Where values are not finite.
#pragma once

#include <optional>
#include <span>

#include <tilegrad/core/base/array.h>

namespace tg::io {

// The first element that is a NaN or an infinity; none among integers. Looks at exponents only, so that it
// costs no more than reading the values.
std::optional<std::int64_t> first_not_finite(const Array& values);
// The same for elements of a dtype at any address.
std::optional<std::int64_t> first_not_finite(std::span<const std::byte> values, DType dtype);

}  // namespace tg::io
