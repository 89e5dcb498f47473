#include "io/checkpoints/finite.h"

#include <cstring>

namespace tg::io {
namespace {

// All bits of the exponent are set.
template <class Word>
std::optional<std::int64_t> first_with(Word exponent, const Array& values) {
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    Word bits;
    std::memcpy(&bits, values.raw() + static_cast<std::size_t>(i) * sizeof bits, sizeof bits);
    if ((bits & exponent) == exponent) return i;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> first_not_finite(const Array& values) {
  switch (values.dtype()) {
    case f64:
      return first_with<std::uint64_t>(0x7ff0000000000000, values);
    case f32:
      return first_with<std::uint32_t>(0x7f800000, values);
    case bf16:
      return first_with<std::uint16_t>(0x7f80, values);
    case f16:
      return first_with<std::uint16_t>(0x7c00, values);
    default:
      return std::nullopt;
  }
}

}  // namespace tg::io
