// What every gradient must obey, whatever its value; and how far another dtype may stray from the f64 one.
// Inside the gradcheck library.
#pragma once

#include "autograd/gradcheck_tally.h"

namespace tg::gradcheck {

// A zero cotangent gives exactly zero; a second run gives the same bits. For any dtype and view.
void check_zero_and_repeat(Harness& harness, const Options& options, Result& result);

// In the contiguous view and f64: the same bits planned and unplanned and with two threads; 4 × the gradient
// when the call is made twice and each output used twice; the same bits for an input asked for alone; an
// output without a cotangent like one with a zero cotangent; the decomposition, where there is one, gives
// the same outputs and gradients.
void check_structure(const Case& c, Harness& harness, const Options& options, Result& result);

// Outputs and gradients in `dtype` on the device against those of `wide`, in f64 on the same numbers. The
// bound for each tensor is k (steps + 1) · (u·max|reference| + what moving every input by a relative u does
// to it) with u the unit roundoff: as if each step of the program stored its result with an error of u (k =
// 1, half types) and computed it with another (k = 2, f32). (A tensor that fails by its own size gets another
// try by the largest of all: where terms cancel exactly in f64, their rounding errors do not.) Where the op
// has a decomposition, three times the error of that, unfused and in the same dtype, is allowed besides.
// Numbers the dtype cannot hold are not compared. `substitute` changes what is checked, not the reference.
void check_dtype(const Case& c, View view, DType dtype, Harness& wide, const Options& options, Result& result,
                 const Replay::Substitute& substitute = {});

}  // namespace tg::gradcheck
