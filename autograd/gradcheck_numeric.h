// The f64 check: analytic gradients compared with four-point central differences, element by element or along
// random directions. Internal to gradcheck.
#pragma once

#include "autograd/gradcheck_tally.h"

namespace tg::gradcheck {

enum class Find {
  worst,  // the element that is furthest off
  any     // stop at the first that is wrong
};
// Compares at a random point and fills the result's counts, errors and worst element. Points on a kink are
// drawn again. Elements that stay on a kink are skipped; more than 5 % of them is a mismatch. Once a few
// elements are wrong where the function is smooth, the others are compared without a look for kinks, which
// takes most of the time. The harness keeps the last point.
void check_elements(Harness& harness, const Options& options, Result& result, Find find = Find::worst);
void check_projections(Harness& harness, const Options& options, Result& result);

// Slope of f at 0 by (f(-2h) − 8f(-h) + 8f(h) − f(2h)) / 12h, and the plain (f(h) − f(-h)) / 2h.
struct Slopes {
  Point two_point, four_point;  // of every output element
};
Slopes slopes(Harness& harness, std::size_t leaf, std::size_t element, double x, double h);

}  // namespace tg::gradcheck
