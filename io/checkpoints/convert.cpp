#include "io/checkpoints/tensor_values.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <tilegrad/core/base/error.h>

namespace tg::io {
namespace {

constexpr std::int64_t no_element = -1;

// A type that can represent every number of S.
template <class S>
using Wide = std::conditional_t<std::is_same_v<S, double>, double, float>;

// Converts n elements, which may be unaligned. If finite elements become infinite, returns the index of the
// first one, otherwise no_element.
template <class From, class To>
std::int64_t convert(const std::byte* from, std::byte* to, std::int64_t n) {
  std::int64_t too_large = no_element;
  for (std::int64_t i = 0; i < n; ++i) {
    From x;
    std::memcpy(&x, from + static_cast<std::size_t>(i) * sizeof x, sizeof x);
    const auto wide = static_cast<Wide<From>>(x);
    const To y(wide);
    std::memcpy(to + static_cast<std::size_t>(i) * sizeof y, &y, sizeof y);
    const bool is_lost = std::isfinite(wide) && !std::isfinite(static_cast<Wide<To>>(y));
    if (is_lost && too_large == no_element) too_large = i;
  }
  return too_large;
}

using Convert = std::int64_t (*)(const std::byte*, std::byte*, std::int64_t);

template <class From>
Convert conversion_to(DType to) {
  return to == f64    ? &convert<From, double>
         : to == f32  ? &convert<From, float>
         : to == bf16 ? &convert<From, bfloat16>
                      : &convert<From, float16>;
}

Convert conversion(DType from, DType to) {
  return from == f64    ? conversion_to<double>(to)
         : from == f32  ? conversion_to<float>(to)
         : from == bf16 ? conversion_to<bfloat16>(to)
                        : conversion_to<float16>(to);
}

}  // namespace

Array converted(const TensorView& from, const Shape& shape, DType dtype, const std::string& where,
                const std::string& name, std::int64_t first) {
  Array values(shape, dtype);
  const std::int64_t bad = conversion(from.dtype, dtype)(from.bytes.data(), values.raw(), values.numel());
  if (bad == no_element) return values;
  Array number({1}, from.dtype);
  const std::size_t size = size_of(from.dtype);
  std::memcpy(number.raw(), from.bytes.data() + static_cast<std::size_t>(bad) * size, size);
  throw FormatError(where + ": " + name + " has " + std::to_string(number.at(0)) + " at element " +
                    std::to_string(first + bad) + ", too large for " + std::string(name_of(dtype)));
}

}  // namespace tg::io
