// Products on Hopper in which the additions of an element are in the order of k, whatever the number of rows
// or columns and wherever k is cut.
#pragma once

#include <string>

#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// Whether it computes a product of matrices, a [m, k], b [k, n] and d [m, n] or nothing, to out [m, n]: in
// bf16 or f16, operands along rows or columns in pieces of 16 bytes, d in f32 and out in the same or, without
// d, in the type of a, both along rows, n even. That does not depend on m, nor on where k is cut at multiples
// of ordered_product_step: bits are those of one product, if d is what the one before left.
bool is_for_ordered_product(const Call& product);

inline constexpr std::int64_t ordered_product_step = 64;

void multiply_in_order(const Stream& s, const Call& product);
std::string ordered_product_choice(const Call& product);

}  // namespace tg::cuda
