// Rules that every gradient must obey, whatever its value, and the allowed difference from f64 in other
// dtypes. Internal to gradcheck.
#pragma once

#include "autograd/gradcheck/tally.h"

namespace tg::gradcheck {

// Checks that a zero cotangent gives exactly zero, and that a second run is bitwise identical. For any dtype
// and view.
void check_zero_and_repeat(Harness& harness, const Options& options, Result& result);

// Checks, in the contiguous view and f64:
// - Results are bitwise identical with and without memory planning, and with two threads.
// - The gradient is 4 × as large if the call is made twice and each output is used twice.
// - Results are bitwise identical if only one input gets a gradient.
// - An output without a cotangent behaves like one with a zero cotangent.
// - The decomposition, if there is one, gives the same outputs and gradients.
void check_structure(const Case& c, Harness& harness, const Options& options, Result& result);

// Checks only the last of these rules: the outputs of the decomposition, and its gradients if there are any.
void check_decomposition(const Case& c, Harness& harness, const Options& options, Result& result);

// Checks, at a special point, that outputs and gradients are the numbers that the sample expects.
void check_expected(const Case& c, Harness& harness, const Options& options, Result& result);

// The case with one tensor for two of its inputs: the first two that are drawn alike. The second one is
// then not read. Empty if there are no two such inputs. The gradient of the first is the sum of both.
struct UsedTwice {
  Case c;
  std::size_t first, second;  // indices of c's inputs
};
std::optional<UsedTwice> used_twice(const Case& c);
void check_used_twice(const Case& c, Harness& harness, const Options& options, Result& result);

// Compares outputs and gradients in `dtype` on the device with those of `wide`, in f64 on the same numbers;
// in the contiguous view also 4 × the gradient. With the unit roundoffs u of the dtype and w of its compute
// type, the bound for each tensor is the sum of three terms:
// - 2·u·max|reference|
// - 2·(steps + 1)·(w·max|reference| + the change of the f64 result if every input changes by a relative w)
// - c·(the error of the f64 program with its results rounded to the dtype)
//
// c is 4, and at least 2·(steps + 1) if the dtype is its own compute type. The measured terms are determined
// at several neighboring points, only if the rest does not suffice. A tensor that still fails is tried again
// with more points, the decompositions of all ops, and the size of the largest tensor. No part of the bound
// runs a kernel or a gradient of the dtype. Numbers that the dtype cannot represent are not compared.
// `planted` changes the program that is checked, not the reference.
void check_dtype(const Case& c, View view, DType dtype, Harness& wide, const Options& options, Result& result,
                 const HarnessOptions& planted = {});

}  // namespace tg::gradcheck
