// The rules that every gradient must obey, whatever its value; and how far it may differ from f64 in another
// dtype. Internal to gradcheck.
#pragma once

#include "autograd/gradcheck/tally.h"

namespace tg::gradcheck {

// A zero cotangent gives exactly zero; a second run gives the same bits. For any dtype and view.
void check_zero_and_repeat(Harness& harness, const Options& options, Result& result);

// In the contiguous view and f64:
// - the same bits with and without memory planning, and with two threads;
// - 4 × the gradient if the call is made twice and each output used twice;
// - the same bits if only one input gets a gradient;
// - an output without a cotangent is like one with a zero cotangent;
// - the decomposition, if there is one, gives the same outputs and gradients.
void check_structure(const Case& c, Harness& harness, const Options& options, Result& result);

// The outputs of the decomposition, and its gradients if there are any: the rule above alone.
void check_decomposition(const Case& c, Harness& harness, const Options& options, Result& result);

// At a special point: outputs and gradients are the numbers that the sample expects.
void check_expected(const Case& c, Harness& harness, const Options& options, Result& result);

// The case with one tensor as two of its inputs, the first two that are drawn alike, of which the second is
// not read; none if there are not two. The first's gradient is the sum of the two.
struct UsedTwice {
  Case c;
  std::size_t first, second;  // of c's inputs
};
std::optional<UsedTwice> used_twice(const Case& c);
void check_used_twice(const Case& c, Harness& harness, const Options& options, Result& result);

// Compares outputs and gradients in `dtype` on the device with those of `wide`, in f64 on the same numbers;
// in the contiguous view also 4 × the gradient. With the unit roundoffs u of the dtype and w of its compute
// type, the bound for each tensor is
//   2·u·max|reference|
//   + 2·(steps + 1)·(w·max|reference| + the change of the f64 result if every input changes by a relative w)
//   + c·(the error of the f64 program with its results rounded to the dtype)
// with c = 4, and at least 2·(steps + 1) where the dtype computes in itself. The last two are measured, at
// several neighbouring points, where the rest does not suffice. A tensor that fails even so is tried again
// with more points, the decompositions of all ops, and the size of the largest tensor. No part of the bound
// runs a kernel or a gradient of the dtype. Numbers that the dtype cannot hold are not compared.
// `planted` changes the program that is checked, not the reference.
void check_dtype(const Case& c, View view, DType dtype, Harness& wide, const Options& options, Result& result,
                 const HarnessOptions& planted = {});

}  // namespace tg::gradcheck
