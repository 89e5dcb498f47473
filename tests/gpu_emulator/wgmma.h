// Matrix multiplications of warpgroups (wgmma). One is computed when a thread waits for its group, with the
// operands' values at that time. Its sums are NaN until keep() after the wait. The registers that it uses
// must be unchanged since the previous wgmma_fence, and until the wait.
#pragma once

#include <cstdint>

namespace tg::emulator {

// d [64, N] = or += a [64, 16]·b [16, N]
struct ProductShape {
  float (*number)(std::uint16_t bits);  // converts an element of an operand
  int columns;
  bool adds, a_in_registers, a_transposed, b_transposed;
  std::uint64_t a, b;  // descriptors
  bool operator==(const ProductShape&) const = default;
};

void issue_product(const ProductShape&, float* sums,
                   const std::uint32_t* a);  // of a thread; a: 4 words or null
void fence_registers();
void commit_products();
void wait_for_products(int pending);
void keep_sums(float* sum);  // keeps all sums of the wgmma with this one, if there is one

void forget_products(unsigned threads);
void insist_on_no_products(unsigned thread);  // that it has not waited for

}  // namespace tg::emulator
