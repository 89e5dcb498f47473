// Where an operand of wgmma lies in shared memory, as its descriptor says.
#pragma once

#include <cstdint>

namespace tg::emulator {

// Elements of 16 bits: `along` counts rows of a, or columns of b; k the 16 of the product.
class OperandPlace {
 public:
  // Null if wgmma takes it, else what is wrong. `extent`: of the rows or columns.
  const char* wrong(int extent) const;
  std::uint32_t address(int along,
                        int k) const;  // of 16 bytes if both are multiples of 8 where they are contiguous
  bool transposed() const { return transposed_; }

  OperandPlace(std::uint64_t descriptor, bool transposed);

 private:
  std::uint32_t start_, leading_, stride_,
      row_;  // bytes; row_: contiguous ones of a swizzled block, 16 without
  unsigned base_offset_;
  bool transposed_;
};

}  // namespace tg::emulator
