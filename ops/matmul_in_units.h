// GEMMs that are computed in units of rows, or in units of k (summed products). A GEMM over some units is
// bitwise identical to the same units within a larger GEMM. linear_cross_entropy uses them for its chunks.
// These functions are not public; other ops call them.
#pragma once

#include <vector>

#include <tilegrad/core/base/attrs.h>
#include <tilegrad/core/graph/tensor.h>

namespace tg {

struct MatmulInUnitsAttrs {
  std::int64_t unit;     // number of rows or summed terms; a multiple of least_unit
  bool along_k = false;  // k is divided and the result has the accumulation type; otherwise rows are divided
  void fields(auto&& field) const { field("unit", unit), field("along_k", along_k, false); }
};

// Minimum unit. From this number of rows on, the choice of the CPU kernel does not depend on it. Tensor core
// kernels divide it into complete steps of k.
inline constexpr std::int64_t least_unit = 64;

// The sizes of n's units. The last one also contains the remainder and is less than twice as large.
std::vector<std::int64_t> units_of(std::int64_t n, std::int64_t unit);

// Returns a [m, k]·b [k, n] in the dtype of a and b, computed in units of rows.
Tensor product_in_units_of_rows(const Tensor& a, const Tensor& b, std::int64_t unit);
// Returns a [m, k]·b [k, n] + sum [m, n]. Adds the products of the units of k to `sum` in order, in f32 for
// 16-bit dtypes. `sum` may be undefined. If nothing else reads `sum`, it is overwritten.
Tensor product_in_units_of_k(const Tensor& a, const Tensor& b, const Tensor& sum, std::int64_t unit);

}  // namespace tg
