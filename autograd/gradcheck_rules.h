// The rules that every gradient must obey, whatever its value; and how far it may differ from f64 in another
// dtype. Internal to gradcheck.
#pragma once

#include "autograd/gradcheck_tally.h"

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

// Compares outputs and gradients in `dtype` on the device with those of `wide`, in f64 on the same numbers.
// With the unit roundoff u, the bound for each tensor is
//   k (steps + 1) · (u·max|reference| + the change of the tensor if every input changes by a relative u),
// as if each step of the program stored its result with an error of u (k = 1, half types) and computed it
// with another (k = 2, f32). A tensor that fails by its own size is tried again with the largest size of all
// tensors: where terms cancel exactly in f64, their rounding errors do not. If the op has a decomposition,
// three times its error, unfused and in the same dtype, is allowed in addition. Numbers that the dtype cannot
// hold are not compared. `substitute` changes the program that is checked, not the reference.
void check_dtype(const Case& c, View view, DType dtype, Harness& wide, const Options& options, Result& result,
                 const Replay::Substitute& substitute = {});

}  // namespace tg::gradcheck
