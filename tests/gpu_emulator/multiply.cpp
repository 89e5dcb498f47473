#include "tests/gpu_emulator/multiply.h"

#include <string>

namespace tg::emulator {

void Factors::left_of_thread(unsigned t, const std::uint32_t* words, Number number) {
  const unsigned lane = t % 32, row = t / 32 * 16 + lane / 4, k = lane % 4 * 2;
  for (unsigned n = 0; n < 4; ++n)
    for (unsigned e = 0; e < 2; ++e)
      left_[row + n % 2 * 8][k + e + n / 2 * 8] = number(static_cast<std::uint16_t>(words[n] >> 16 * e));
}

// In tensor cores, the order and rounding of sums are undocumented. mma.sync is emulated in the same way.
[[gnu::target_clones("avx2", "default")]] void Factors::multiply(float* sums, int columns) const {
  for (int row = 0; row < 64; ++row) {
    float* const to = sums + row * columns;
    for (int k = 0; k < 16; ++k) {
      const float factor = left_[row][k];
      const float* const from = right_[k];
      for (int n = 0; n < columns; ++n) to[n] += factor * from[n];
    }
  }
}

const unsigned char* Factors::piece(std::uint32_t address) {
  const unsigned char* const p =
      shared_pointer(shared_of(address, here.rank));  // descriptors do not contain the block's rank
  const auto offset = static_cast<std::size_t>(p - dynamic_shared());
  if (offset + 16 > shared_size())
    give_up("wgmma reads byte " + std::to_string(offset) + " of " + std::to_string(shared_size()) +
            " of dynamic shared memory");
  return p;
}

}  // namespace tg::emulator
