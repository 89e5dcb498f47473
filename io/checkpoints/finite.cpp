#include "io/checkpoints/tensor_values.h"

#include <cstring>
#include <limits>

#include <tilegrad/core/base/error.h>
#include "core/base/piece_size.h"

namespace tg::io {
namespace {

// An element is not finite if all bits of its exponent are set. Adding 1 to such an exponent carries into the
// sign bit. The carry never reaches the next element, so one 64-bit addition tests several elements. A block
// of elements is tested without branches.
template <class Word>
std::optional<std::int64_t> first_with(Word exponent, std::span<const std::byte> values) {
  constexpr Word sign = static_cast<Word>(Word{1} << (8 * sizeof(Word) - 1));
  const Word lowest = static_cast<Word>(sign - exponent);
  constexpr std::uint64_t each = ~std::uint64_t{0} / std::numeric_limits<Word>::max();  // 1 in every element
  const std::uint64_t exponents = each * exponent, lowests = each * lowest, signs = each * sign;
  constexpr std::size_t block = piece_size(512, 64);  // bytes
  std::size_t at = 0;
  for (; at + block <= values.size(); at += block) {
    std::uint64_t any = 0;
    for (std::size_t i = 0; i < block; i += sizeof any) {
      std::uint64_t bits;
      std::memcpy(&bits, values.data() + at + i, sizeof bits);
      any |= (bits & exponents) + lowests;
    }
    if ((any & signs) != 0) break;
  }
  for (std::size_t i = at / sizeof(Word); i < values.size() / sizeof(Word); ++i) {
    Word bits;
    std::memcpy(&bits, values.data() + i * sizeof bits, sizeof bits);
    if ((static_cast<Word>((bits & exponent) + lowest) & sign) != 0) return static_cast<std::int64_t>(i);
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

void require_finite(std::span<const std::byte> values, DType dtype, const std::string& what,
                    std::int64_t first) {
  if (const auto bad = first_not_finite(values, dtype))
    throw FormatError(what + " has a number that is not finite at element " + std::to_string(first + *bad));
}

}  // namespace tg::io
