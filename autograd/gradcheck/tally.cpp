#include "autograd/gradcheck/tally.h"

#include <limits>

namespace tg::gradcheck {

double unit_roundoff(DType dtype) {
  return dtype == f64 ? 0x1p-53 : dtype == f32 ? 0x1p-24 : dtype == bf16 ? 0x1p-8 : 0x1p-11;
}

double smallest_positive(DType dtype) {
  return dtype == f64 ? 0x1p-1074 : dtype == f32 ? 0x1p-149 : dtype == bf16 ? 0x1p-133 : 0x1p-24;
}

double largest_finite(DType dtype) {
  return dtype == f64    ? 0x1.fffffffffffffp1023
         : dtype == f32  ? 0x1.fffffep127
         : dtype == bf16 ? 0x1.fep127
                         : 65504;
}

double largest(const Values& v) {
  double m = 0;
  for (double x : v)
    if (std::isfinite(x)) m = std::max(m, std::abs(x));
  return m;
}

double farthest(const Values& a, const Values& b) {
  double m = 0;
  for (std::size_t k = 0; k < a.size(); ++k)
    if (a[k] != b[k])
      m = std::isnan(a[k] - b[k]) ? std::numeric_limits<double>::infinity()
                                  : std::max(m, std::abs(a[k] - b[k]));
  return m;
}

Point nudged(const Point& x, double u, const std::vector<bool>& which, std::uint64_t seed) {
  Point y = x;
  std::uint64_t bits = seed * 0x9E3779B97F4A7C15u + 0x7654321;
  for (std::size_t i = 0; i < y.size(); ++i) {
    for (double& v : y[i]) {
      bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
      if (which[i]) v *= (bits >> 40) & 1 ? 1 + u : 1 - u;
    }
  }
  return y;
}

Read read(Harness& h, const Point& x, const Point& r) {
  h.set(x, r);
  return {h.outputs(), h.gradients()};
}

Point gradients_at(Harness& h, const Point& x, const Point& r) {
  h.set(x, r);
  return h.gradients();
}

std::string index_text(const Shape& shape, std::int64_t i) {
  return detail::index_of(shape, i).text();
}

void Tally::non_finite(const std::string& where, const Comparison& c) {
  if (result_.status == Status::non_finite) return;  // keep the first non-finite element
  result_.status = Status::non_finite;
  result_.worst = {where, c.analytic, c.numeric, c.h, 0};
  result_.ratio = std::numeric_limits<double>::infinity();
}

// |analytic − numeric| in units of the distance between neighboring numbers at the numeric value.
double Tally::ulps(const Comparison& c) const {
  const double size = std::max(std::abs(c.numeric), c.scale);
  if (size == 0) return 0;
  int exponent = 0;
  std::frexp(size, &exponent);
  return std::abs(c.analytic - c.numeric) / std::ldexp(2 * unit_roundoff(result_.dtype), exponent - 1);
}

}  // namespace tg::gradcheck
