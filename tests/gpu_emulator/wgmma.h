// Products of warpgroups (wgmma). A product is computed when a thread waits for its group, with operands as
// they are then; its sums are NaN until keep() after the wait. What of the registers a product uses must be
// as at the last wgmma_fence before it, and stay so until the wait.
#pragma once

#include <cstdint>

namespace tg::emulator {

// d [64, N] = or += a [64, 16]·b [16, N]
struct ProductShape {
  float (*number)(std::uint16_t bits);  // of an operand
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
void keep_sums(float* sum);  // all of the product that has this one; no matter if none has it

void forget_products(unsigned threads);
void insist_on_no_products(unsigned thread);  // that it has not waited for

}  // namespace tg::emulator
