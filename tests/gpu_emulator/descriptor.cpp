#include "tests/gpu_emulator/descriptor.h"

namespace tg::emulator {

// Bits 0 … 13 are the address. Bits 16 … 29 are the leading byte offset. Bits 32 … 45 are the stride byte
// offset. The unit of these fields is 16 bytes. Bits 49 … 51 are the base offset. Bits 62 and 63 select the
// swizzle: none, 128, 64 or 32 bytes.
OperandPlace::OperandPlace(std::uint64_t d, bool transposed)
    : start_((d & 0x3fff) * 16),
      leading_((d >> 16 & 0x3fff) * 16),
      stride_((d >> 32 & 0x3fff) * 16),
      row_(d >> 62 == 0 ? 16 : 256u >> (d >> 62)),
      base_offset_(d >> 49 & 7),
      transposed_(transposed) {}

const char* OperandPlace::wrong(int extent) const {
  if (base_offset_ != 0) return "has a base offset, which the emulator does not know";
  if (row_ == 16) return nullptr;
  if (transposed_) {
    if (start_ % (8 * row_) != 0) return "is transposed and begins inside of a block of the swizzle";
    if (extent * 2 > static_cast<int>(row_) && leading_ < 8 * row_)
      return "has blocks of columns that overlap";
  } else {
    if (start_ % (8 * row_) / row_ != 0) return "does not begin at the first of the 8 rows of a swizzle";
    if (start_ % row_ + 32 > row_) return "leaves the rows of its swizzle";
  }
  return nullptr;
}

std::uint32_t OperandPlace::address(int along, int k) const {
  const auto a = static_cast<std::uint32_t>(along), b = static_cast<std::uint32_t>(k);
  if (row_ == 16) {  // 8 × 8 parts of 128 bytes
    const std::uint32_t rows = transposed_ ? b : a, columns = transposed_ ? a : b;
    return start_ + rows % 8 * 16 + columns % 8 * 2 + a / 8 * stride_ + b / 8 * leading_;
  }
  const std::uint32_t in_row = row_ / 2;  // elements
  const std::uint32_t linear =
      transposed_ ? start_ + a / in_row * leading_ + a % in_row * 2 + b / 8 * stride_ + b % 8 * row_
                  : start_ + a / 8 * stride_ + a % 8 * row_ + b * 2;
  return linear ^ (linear >> 3 & (row_ - 16));
}

}  // namespace tg::emulator
