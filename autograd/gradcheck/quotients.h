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
// drawn again. Elements that stay on a kink are skipped. If more than 5 % of the elements are skipped, the
// result is a mismatch. The search for kinks is the most expensive part. It stops as soon as a few elements
// are wrong at points where the function is smooth. The harness keeps the last point.
void check_elements(Harness& harness, const Options& options, Result& result, Find find = Find::worst);
void check_projections(Harness& harness, const Options& options, Result& result);

// Slopes of f at 0: four-point (f(-2h) − 8f(-h) + 8f(h) − f(2h)) / 12h, and two-point (f(h) − f(-h)) / 2h.
struct Slopes {
  Point two_point, four_point;  // per output element
};
Slopes slopes(Harness& harness, std::size_t leaf, std::size_t element, double x, double h);

// Special points are zeros, ties, kinks, infinities and huge numbers. Random points miss them. The gradient
// is checked at special points. If an op promises second derivatives, these are also checked.

// Whether the case is checked at special points. Only cases of ops are checked there. With --quick, if an op
// has many samples, only every fourth of them is checked. The seed determines which.
bool has_special_points(const Case& c, const Options& options);

// Compares analytic derivatives with one-sided and central quotients of several steps, element by element, in
// f64 and the contiguous view. If the function is smooth, the derivative must be its slope. At a kink of a
// pointwise op, it must be between the two slopes. At a jump it must be finite. At ±∞ it must equal the slope
// at ±10⁶. Skips points at which the function is not finite, and elements for which quotients are
// inconclusive. If the op promises only first derivatives, second derivatives are not checked. A sample with
// given values is checked only at those values. In that case only the second derivative is checked, because
// check_expected checks the first.
void check_special(const Case& c, const Options& options, Result& result);

// The analytic derivative of one element. A list of these contains all elements of check_special in the same
// order, including skipped elements.
struct SpecialDerivative {
  double value;
  bool is_smooth;  // the function is smooth at the point, and quotients agree
};
std::vector<SpecialDerivative> special_derivatives(const Case& c, const Options& options);

// A copy of the case whose nodes are recorded again, with some nodes replaced. Custom gradients that a
// function records around its nodes are kept, unless they belong to the replaced op.
Case replayed(const Case& c, const Replay::Substitute& substitute, bool keeps_custom_gradients = true);

}  // namespace tg::gradcheck
