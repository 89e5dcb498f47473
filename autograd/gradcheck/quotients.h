// The f64 checks of gradcheck: analytic derivatives compared with difference quotients, at random points
// (numeric.cpp) and at special points (special.cpp). Internal to gradcheck.
#pragma once

#include "autograd/gradcheck/tally.h"

namespace tg::gradcheck {

// Random points: compares with four-point central differences, element by element or along random directions.

enum class Find {
  worst,  // find the element with the largest error
  any     // stop at the first wrong element
};
// Compares at a random point and fills the result's counts, errors and worst element. Points on a kink are
// drawn again. Elements that stay on a kink are skipped; more than 5 % of them is a mismatch. Once a few
// elements are wrong at points where the function is smooth, the others are compared without a search for
// kinks, which is the most expensive part. The harness keeps the last point.
void check_elements(Harness& harness, const Options& options, Result& result, Find find = Find::worst);
void check_projections(Harness& harness, const Options& options, Result& result);

// Slopes of f at 0: four-point (f(-2h) − 8f(-h) + 8f(h) − f(2h)) / 12h, and two-point (f(h) − f(-h)) / 2h.
struct Slopes {
  Point two_point, four_point;  // per output element
};
Slopes slopes(Harness& harness, std::size_t leaf, std::size_t element, double x, double h);

// Special points: zeros, ties, kinks, infinities and huge numbers, which random points miss. The gradient is
// checked there. If an op promises second derivatives, they are checked too.

// Whether the case is checked at special points. Only cases of ops are. With --quick, only every fourth
// sample of an op with many samples is checked. The seed determines the samples.
bool has_special_points(const Case& c, const Options& options);

// Compares analytic derivatives with one-sided and central quotients of several steps, element by element, in
// f64 and the contiguous view. If the function is smooth, the derivative must be its slope. At a kink of a
// pointwise op, it must be between the two slopes. At a jump it must be finite. At ±∞ it must be the slope at
// ±10⁶. Skips points at which the function is not finite, and elements for which quotients are inconclusive.
// Second derivatives are not checked if the op promises only the first. A sample with given values is checked
// only at those values, and only its second derivative, because check_expected checks the first.
void check_special(const Case& c, const Options& options, Result& result);

// The analytic derivative of one element. The list has the elements of check_special in the same order,
// including skipped ones.
struct SpecialDerivative {
  double value;
  bool is_smooth;  // quotients agree with it, and the function is smooth there
};
std::vector<SpecialDerivative> special_derivatives(const Case& c, const Options& options);

// The case with its nodes recorded again and some of them replaced. Custom gradients that a function records
// around its nodes are kept, except if they belong to the replaced op.
Case replayed(const Case& c, const Replay::Substitute& substitute, bool keeps_custom_gradients = true);

}  // namespace tg::gradcheck
