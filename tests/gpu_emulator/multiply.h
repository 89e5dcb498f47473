// Computes wgmma. Converts the operands to numbers and multiplies them.
#pragma once

#include <cstdint>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/descriptor.h"

namespace tg::emulator {

class Factors {
 public:
  using Number = float (*)(std::uint16_t bits);

  // Reads an operand from registers. The words contain rows g, g + 8, g, g + 8 and columns 2t, 2t + 1. In the
  // last two words, 8 is added to the columns.
  void left_of_thread(unsigned t, const std::uint32_t* words, Number number);
  // Reads an operand from shared memory. Calls note(p, warp) for each 16 bytes. `warp` is the warp whose
  // wgmma reads these bytes, or −1 for all warps.
  template <class Note>
  void left_of(const OperandPlace& place, Number number, Note note) {
    read(
        place, 64, number, [&](const void* p, int row) { note(p, row / 16); },
        [&](int row, int k) -> float& { return left_[row][k]; });
  }
  template <class Note>
  void right_of(const OperandPlace& place, int columns, Number number, Note note) {
    read(
        place, columns, number, [&](const void* p, int) { note(p, -1); },
        [&](int column, int k) -> float& { return right_[k][column]; });
  }
  void multiply(float* sums, int columns) const;  // sums [64, columns] += left·right

 private:
  template <class Note, class Element>
  static void read(const OperandPlace& place, int extent, Number number, Note note, Element element) {
    for (int a = 0; a < extent; a += place.transposed() ? 8 : 1)
      for (int k = 0; k < 16; k += place.transposed() ? 1 : 8) {
        const unsigned char* p = piece(place.address(a, k));
        note(p, a);
        const auto* bits = reinterpret_cast<const std::uint16_t*>(p);
        for (int e = 0; e < 8; ++e)
          (place.transposed() ? element(a + e, k) : element(a, k + e)) = number(bits[e]);
      }
  }
  static const unsigned char* piece(std::uint32_t address);  // throws if the block does not own the memory

  float left_[64][16], right_[16][256];
};

}  // namespace tg::emulator
