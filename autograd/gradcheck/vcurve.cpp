// The V-curve: the error of difference quotients as a function of the step. If the gradient is wrong, the
// curve is flat. Otherwise the truncation error falls as the step shrinks, until the rounding error dominates
// and rises.
#include "autograd/gradcheck/quotients.h"

namespace tg::gradcheck {

namespace {

double projected(const Values& slope, const Values& r) {
  double sum = 0;
  for (std::size_t k = 0; k < r.size(); ++k) sum += slope[k] * r[k];
  return sum;
}

// Analytic gradients in f64. Every dtype can represent the point exactly.
struct Reference {
  Point x, r, z;
  double largest = 0;
};

Reference reference(Harness& wide, const Harness& narrow, std::uint64_t seed) {
  Reference ref{narrow.draw(seed), narrow.draw_cotangents(seed), {}};
  ref.z = gradients_at(wide, ref.x, ref.r);
  for (const Values& v : ref.z)
    for (double z : v) ref.largest = std::max(ref.largest, std::abs(z));
  return ref;
}

struct Errors {
  double two = 0, four = 0;
};

// max |numeric − analytic| / max |analytic| over all elements.
Errors errors(Harness& h, const Reference& ref, double step) {
  Errors worst;
  h.set(ref.x);
  for (std::size_t number = 0; const std::size_t l : h.floating_leaves()) {
    for (std::size_t k = 0; k < ref.x[l].size(); ++k) {
      const Slopes s = slopes(h, l, k, ref.x[l][k], step * std::max(1.0, std::abs(ref.x[l][k])));
      double two = 0, four = 0;
      for (std::size_t o = 0; o < ref.r.size(); ++o) {
        two += projected(s.two_point[o], ref.r[o]);
        four += projected(s.four_point[o], ref.r[o]);
      }
      worst.two = std::max(worst.two, std::abs(two - ref.z[number][k]) / ref.largest);
      worst.four = std::max(worst.four, std::abs(four - ref.z[number][k]) / ref.largest);
    }
    ++number;
  }
  return worst;
}

}  // namespace

VCurve v_curve(const Case& c, const Options& options) {
  options.check_numbers();
  Harness wide(c, View::contiguous, f64, {}), narrow(c, View::contiguous, f32, {});
  VCurve curve;
  if (!wide.differentiable()) return curve;
  const Reference ref = reference(wide, narrow, options.seed);
  for (double power = -1; power > -9.01; power -= 0.25) {
    const double h = std::pow(10.0, power);
    const Errors e = errors(wide, ref, h);
    curve.h.push_back(h);
    curve.two_point.push_back(e.two);
    curve.four_point.push_back(e.four);
    curve.four_point_f32.push_back(errors(narrow, ref, h).four);
  }
  return curve;
}

}  // namespace tg::gradcheck
