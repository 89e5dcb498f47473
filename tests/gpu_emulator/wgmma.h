// Emulates matrix multiplications of warpgroups (wgmma). A wgmma is computed when a thread waits for the
// wgmma's group. It uses the values of the operands at that time. The sums are NaN until keep() after the
// wait. A wgmma's registers must not change between the previous wgmma_fence and the wait.
#pragma once

#include <cstdint>

namespace tg::emulator {

// Computes d [64, N] = a [64, 16]·b [16, N], or adds to d.
struct ProductShape {
  float (*number)(std::uint16_t bits);  // converts an element of an operand
  int columns;
  bool adds, a_in_registers, a_transposed, b_transposed;
  std::uint64_t a, b;  // descriptors
  bool operator==(const ProductShape&) const = default;
};

void issue_product(const ProductShape&, float* sums,
                   const std::uint32_t* a);  // the thread's registers; a: 4 words or null
void fence_registers();
void commit_products();
void wait_for_products(int pending);
void keep_sums(float* sum);  // keeps all sums of the wgmma that computed `sum`

void forget_products(unsigned threads);
void insist_on_no_products(unsigned thread);  // throws if the thread has not waited for all wgmma

}  // namespace tg::emulator
