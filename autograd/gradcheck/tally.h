// Tally collects comparisons into a Result. It counts them, and records the largest errors and the worst
// element. Internal to gradcheck.
#pragma once

#include <cmath>

#include "autograd/gradcheck/harness.h"

namespace tg::gradcheck {

struct Comparison {
  double analytic, numeric, allowed;
  double scale = 0;  // minimum scale of relative errors
  double h = 0;      // step of the difference quotient; 0 if there is none
};

// Returns the unit roundoff: half the distance from 1 to the next number.
double unit_roundoff(DType dtype);
double smallest_positive(DType dtype);
double largest_finite(DType dtype);

// largest() returns the largest finite magnitude. distance() returns the distance between two lists of
// numbers; equal infinities have the distance 0.
double largest(const Values& v);
double farthest(const Values& a, const Values& b);

// Returns x·(1 ± u), with a random sign for each element of the chosen tensors.
Point nudged(const Point& x, double u, const std::vector<bool>& which, std::uint64_t seed);

// Sets the numbers of a harness, runs both programs, and stores the results.
struct Read {
  Point outputs, gradients;
};
Read read(Harness& h, const Point& x, const Point& r);
Point gradients_at(Harness& h, const Point& x, const Point& r);

// The indices of element i, in row-major order, of a tensor of this shape: "[2, 0]".
std::string index_text(const Shape& shape, std::int64_t i);

class Tally {
 public:
  explicit Tally(Result& result) : result_(result) {}

  // Calls `where` only if the element is worse than all earlier ones.
  template <class Where>
  void add(const Comparison& c, Where&& where) {
    ++result_.checked;
    judge(c, where);
  }
  // Compares without counting the comparison.
  template <class Where>
  void judge(const Comparison& c, Where&& where) {
    const double error = std::abs(c.analytic - c.numeric);
    if (!std::isfinite(error)) return non_finite(where(), c);
    const double size = std::max(std::abs(c.numeric), c.scale);
    result_.max_abs = std::max(result_.max_abs, error);
    if (size > 0) result_.max_rel = std::max(result_.max_rel, error / size);
    const double ratio = error == 0 ? 0 : c.allowed > 0 ? error / c.allowed : 1e300;
    if (ratio < result_.ratio || (ratio == result_.ratio && !result_.worst.where.empty())) return;
    result_.ratio = ratio;
    result_.worst = {where(), c.analytic, c.numeric, c.h, ulps(c)};
    if (ratio > 1 && result_.status != Status::non_finite) result_.status = Status::mismatch;
  }

  // Records whether a rule holds.
  void rule(bool holds, const std::string& otherwise) {
    ++result_.rules;
    if (!holds) fail(otherwise);
  }

  void fail(const std::string& note) {
    if (result_.status != Status::non_finite) result_.status = Status::mismatch;
    if (result_.note.find(note) == std::string::npos)
      result_.note += (result_.note.empty() ? "" : "; ") + note;
  }
  void non_finite(const std::string& where, const Comparison& c);
  bool failed() const { return result_.status == Status::mismatch || result_.status == Status::non_finite; }

 private:
  double ulps(const Comparison& c) const;
  Result& result_;
};

}  // namespace tg::gradcheck
