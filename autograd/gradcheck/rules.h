// Checks of the rules that every gradient must obey. Also checks that results in other dtypes are close
// enough to f64. Internal to gradcheck.
#pragma once

#include "autograd/gradcheck/tally.h"

namespace tg::gradcheck {

// Checks, for any dtype and view, that a zero cotangent gives exactly zero and that a second run is bitwise
// identical.
void check_zero_and_repeat(Harness& harness, const Options& options, Result& result);

// Checks, in the contiguous view and f64:
// - Results are bitwise identical with and without memory planning, and with two threads.
// - The gradient is 4 × as large if the call is made twice and each output is used twice.
// - Results are bitwise identical if only one input gets a gradient.
// - A missing cotangent has the same effect as a zero cotangent.
// - The decomposition, if there is one, gives the same outputs and gradients.
void check_structure(const Case& c, Harness& harness, const Options& options, Result& result);

// Checks only the last of these rules: the outputs of the decomposition and, if there are any, its gradients.
void check_decomposition(const Case& c, Harness& harness, const Options& options, Result& result);

// Checks that outputs and gradients at a special point equal the sample's expected numbers.
void check_expected(const Case& c, Harness& harness, const Options& options, Result& result);

// A case that uses one tensor for two inputs: the first two inputs whose values are drawn in the same way.
// The second input is not read, and the gradient of the first is the sum of both gradients. If there are no
// two such inputs, the function returns nothing.
struct UsedTwice {
  Case c;
  std::size_t first, second;  // indices of c's inputs
};
std::optional<UsedTwice> used_twice(const Case& c);
void check_used_twice(const Case& c, Harness& harness, const Options& options, Result& result);

// Compares outputs and gradients in `dtype` on the device with `wide`, which computes in f64 on the same
// numbers. In the contiguous view, also checks 4 × the gradient. Let u be the unit roundoff of the dtype, and
// w the unit roundoff of its compute type. The bound for each tensor is the sum of three terms:
// - 2·u·max|reference|
// - 2·(steps + 1)·(w·max|reference| + the change of the f64 result if every input changes by a relative w)
// - c·(the error of the f64 program with its results rounded to the dtype)
//
// c is 4, and at least 2·(steps + 1) if the dtype is its own compute type. The second and third terms are
// measured at several neighboring points. They are measured only if the rest of the bound does not suffice. A
// tensor that still fails is checked again with more points, the decompositions of all ops, and the magnitude
// of the largest tensor. No kernel or gradient of the dtype contributes to the bound. Numbers that the dtype
// cannot represent are not compared. `planted` changes the program that is checked, not the reference.
void check_dtype(const Case& c, View view, DType dtype, Harness& wide, const Options& options, Result& result,
                 const HarnessOptions& planted = {});

}  // namespace tg::gradcheck
