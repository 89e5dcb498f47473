// GEMMs that are computed in units, so that a GEMM over some units is bitwise identical to the same units
// within a larger GEMM. Rows of a·b are computed in units of rows, and sums over k in units of k.
// linear_cross_entropy uses them for its chunks. They are not part of the public API: ops record them.
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

// Minimum unit. With this number of rows, the CPU kernel does not depend on the number of rows, and tensor
// cores have whole steps of k.
inline constexpr std::int64_t least_unit = 64;

// The sizes of n's units. The last one also contains the remainder and is less than twice as large.
std::vector<std::int64_t> units_of(std::int64_t n, std::int64_t unit);

// a [m, k]·b [k, n] in units of rows, in their dtype.
Tensor product_in_units_of_rows(const Tensor& a, const Tensor& b, std::int64_t unit);
// a [m, k]·b [k, n] + sum [m, n]: adds the units' products to `sum` in order, in f32 for 16-bit dtypes. It is
// computed in place if nothing else reads `sum`, which may be undefined.
Tensor product_in_units_of_k(const Tensor& a, const Tensor& b, const Tensor& sum, std::int64_t unit);

}  // namespace tg
