// The f64 check: analytic gradients against four-point central differences, element by element or along
// random directions. Inside the gradcheck library.
#pragma once

#include "autograd/gradcheck_tally.h"

namespace tg::gradcheck {

// Compares at a random point and fills the result's counts, errors and worst element. Points on a kink are
// drawn again; elements that stay on one are skipped, and more than 5 % of those is a mismatch. The harness
// is left at the last point.
void check_elements(Harness& harness, const Options& options, Result& result);
void check_projections(Harness& harness, const Options& options, Result& result);

// Slope of f at 0 by (f(-2h) − 8f(-h) + 8f(h) − f(2h)) / 12h, and the plain (f(h) − f(-h)) / 2h.
struct Slopes {
  Point two_point, four_point;  // of every output element
};
Slopes slopes(Harness& harness, std::size_t leaf, std::size_t element, double x, double h);

}  // namespace tg::gradcheck
