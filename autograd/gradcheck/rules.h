// Checks of the rules that every gradient must obey, and of the allowed difference from f64 in other dtypes.
// Internal to gradcheck.
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
// - An output without a cotangent behaves like an output with a zero cotangent.
// - The decomposition, if there is one, gives the same outputs and gradients.
void check_structure(const Case& c, Harness& harness, const Options& options, Result& result);

// Checks only the last of these rules: the outputs of the decomposition, and its gradients if there are any.
void check_decomposition(const Case& c, Harness& harness, const Options& options, Result& result);

// Checks that outputs and gradients at a special point are the numbers that the sample expects.
void check_expected(const Case& c, Harness& harness, const Options& options, Result& result);

// A case that uses one tensor for two of its inputs: the first two inputs whose values are drawn in the same
// way. The second input is then not read. The gradient of the first input is the sum of both gradients. The
// function returns nothing if there are no two such inputs.
struct UsedTwice {
  Case c;
  std::size_t first, second;  // indices of c's inputs
};
std::optional<UsedTwice> used_twice(const Case& c);
void check_used_twice(const Case& c, Harness& harness, const Options& options, Result& result);

// Compares outputs and gradients in `dtype` on the device with `wide`, which computes in f64 on the same
// numbers. In the contiguous view, also checks 4 × the gradient. With the unit roundoffs u of the dtype and w
// of its compute type, the bound for each tensor is the sum of three terms:
// - 2·u·max|reference|
// - 2·(steps + 1)·(w·max|reference| + the change of the f64 result if every input changes by a relative w)
// - c·(the error of the f64 program with its results rounded to the dtype)
//
// c is 4, and at least 2·(steps + 1) if the dtype is its own compute type. The measured terms are determined
// at several neighboring points, but only if the other parts of the bound do not suffice. A tensor that still
// fails is checked again with more points, the decompositions of all ops, and the magnitude of the largest
// tensor. No kernel or gradient of the dtype contributes to the bound. Numbers that the dtype cannot
// represent are not compared. `planted` changes the program that is checked, not the reference.
void check_dtype(const Case& c, View view, DType dtype, Harness& wide, const Options& options, Result& result,
                 const HarnessOptions& planted = {});

}  // namespace tg::gradcheck
