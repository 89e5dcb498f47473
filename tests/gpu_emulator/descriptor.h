// Decodes a wgmma descriptor, which contains the location of an operand in shared memory.
#pragma once

#include <cstdint>

namespace tg::emulator {

// Elements have 16 bits. `along` is a row of a, or a column of b. k is one of the 16 inner indices.
class OperandPlace {
 public:
  // Returns null if wgmma accepts the operand. Otherwise returns a description of the mistake. `extent` is
  // the number of rows or columns.
  const char* wrong(int extent) const;
  std::uint32_t address(int along,
                        int k) const;  // of 16 bytes if the contiguous index is a multiple of 8
  bool transposed() const { return transposed_; }

  OperandPlace(std::uint64_t descriptor, bool transposed);

 private:
  std::uint32_t start_, leading_, stride_,
      row_;  // bytes; row_: contiguous bytes of a swizzled block, or 16 without a swizzle
  unsigned base_offset_;
  bool transposed_;
};

}  // namespace tg::emulator
