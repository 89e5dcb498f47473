// Products that are cut into units, so that a product of some of the units has the bits that it has in the
// product of all: rows of a·b in units of rows, sums over k in units of k. linear_cross_entropy has its
// chunks from it. Not for users: a graph has these products where an op says so.
#pragma once

#include <vector>

#include <tilegrad/core/base/attrs.h>
#include <tilegrad/core/graph/tensor.h>

namespace tg {

struct MatmulInUnitsAttrs {
  std::int64_t unit;     // rows, or terms of a sum; a multiple of least_unit
  bool along_k = false;  // k is cut, and the result in the type in which it is added up; else rows are
  void fields(auto&& field) const { field("unit", unit), field("along_k", along_k, false); }
};

// Of as many rows a CPU's kernel does not look at their number, and tensor cores have whole steps of k.
inline constexpr std::int64_t least_unit = 64;

// The sizes of n's units: the last has what is left, less than twice as many.
std::vector<std::int64_t> units_of(std::int64_t n, std::int64_t unit);

// a [m, k]·b [k, n] in units of rows, in their dtype.
Tensor product_in_units_of_rows(const Tensor& a, const Tensor& b, std::int64_t unit);
// a [m, k]·b [k, n] + sum [m, n], the units' products added to `sum` one after the other: f32 for half types,
// and in place where nothing else reads `sum`, which may be undefined.
Tensor product_in_units_of_k(const Tensor& a, const Tensor& b, const Tensor& sum, std::int64_t unit);

}  // namespace tg
