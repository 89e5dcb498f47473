#include "io/checkpoints/finite.h"

#include <algorithm>
#include <cstring>

namespace tg::io {
namespace {

// All bits of the exponent are set: adding its lowest bit then carries into the sign. Blocks are looked
// through without a branch for each element.
template <class Word>
std::optional<std::int64_t> first_with(Word exponent, std::span<const std::byte> values) {
  constexpr std::size_t block = 1024;
  constexpr Word sign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
  const Word lowest = static_cast<Word>(sign - exponent);
  const std::size_t n = values.size() / sizeof(Word);
  const auto carried = [&](std::size_t i) {
    Word bits;
    std::memcpy(&bits, values.data() + i * sizeof bits, sizeof bits);
    return static_cast<Word>((bits & exponent) + lowest);
  };
  for (std::size_t from = 0; from < n; from += block) {
    const std::size_t to = std::min(n, from + block);
    Word any = 0;
    for (std::size_t i = from; i < to; ++i) any = static_cast<Word>(any | carried(i));
    if ((any & sign) == 0) continue;
    for (std::size_t i = from; i < to; ++i)
      if ((carried(i) & sign) != 0) return static_cast<std::int64_t>(i);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::int64_t> first_not_finite(std::span<const std::byte> values, DType dtype) {
  switch (dtype) {
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

std::optional<std::int64_t> first_not_finite(const Array& values) {
  return first_not_finite({values.raw(), values.bytes()}, values.dtype());
}

}  // namespace tg::io
