// GEMMs that are computed in units of rows, or in units of k (summed products). A unit gives bitwise
// identical results in a small GEMM and in a larger GEMM. linear_cross_entropy uses these functions for its
// chunks. They are not public.
#pragma once

#include <vector>

#include <tilegrad/core/base/attrs.h>
#include <tilegrad/core/graph/tensor.h>

namespace tg {

struct MatmulInUnitsAttrs {
  std::int64_t unit;     // number of rows or summed terms; a multiple of least_unit
  bool along_k = false;  // divides k, with a result in the accumulation type; otherwise divides rows
  void fields(auto&& field) const { field("unit", unit), field("along_k", along_k, false); }
};

// Minimum unit. With at least this number of rows, the choice of the CPU kernel does not depend on the number
// of rows. The unit is also a multiple of the k steps of tensor core kernels.
inline constexpr std::int64_t least_unit = 64;

// Divides n into units and returns their sizes. The last unit also contains the remainder, so its size is
// less than twice the unit.
std::vector<std::int64_t> units_of(std::int64_t n, std::int64_t unit);

// Returns a [m, k]·b [k, n] in the dtype of a and b, computed in units of rows.
Tensor product_in_units_of_rows(const Tensor& a, const Tensor& b, std::int64_t unit);
// Returns a [m, k]·b [k, n] + sum [m, n]. The products of the units of k are added to `sum` in order, in f32
// for 16-bit dtypes. `sum` may be undefined. If nothing else reads `sum`, the result may overwrite it.
Tensor product_in_units_of_k(const Tensor& a, const Tensor& b, const Tensor& sum, std::int64_t unit);

}  // namespace tg
