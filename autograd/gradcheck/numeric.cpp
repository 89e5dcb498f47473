#include "autograd/gradcheck/quotients.h"

namespace tg::gradcheck {

namespace {

constexpr int rounds = 5;           // points to draw before elements on a kink are skipped
constexpr double skippable = 0.05;  // maximum fraction of skipped elements
constexpr std::size_t projections = 4;
constexpr std::int64_t most_rows = 64;  // maximum number of rows of the Jacobian that are checked one by one

// Returns high − low, or 0 if both are −∞. An output that is −∞ for every input, such as the log of an empty
// sum, has the slope 0.
double difference(double high, double low) {
  return high == low && std::isinf(high) && high < 0 ? 0 : high - low;
}

Slopes slopes_of(const Point& mm, const Point& m, const Point& p, const Point& pp, double h) {
  Slopes s{p, p};
  for (std::size_t o = 0; o < p.size(); ++o) {
    for (std::size_t k = 0; k < p[o].size(); ++k) {
      const double near = difference(p[o][k], m[o][k]), far = difference(pp[o][k], mm[o][k]);
      s.two_point[o][k] = near / (2 * h);
      s.four_point[o][k] = (8 * near - far) / (12 * h);
    }
  }
  return s;
}

double dot(const Point& a, const Point& r) {
  double sum = 0;
  for (std::size_t o = 0; o < a.size(); ++o)
    for (std::size_t k = 0; k < a[o].size(); ++k)
      if (r[o][k] != 0) sum += a[o][k] * r[o][k];
  return sum;
}

// Estimates the error of a quotient with step h for the case that only the values of f are rounded. The
// estimate is a few units of roundoff of Σ|r·f|, divided by h.
double quotient_noise(const Point& f, const Point& r, double h) {
  double sum = 0;
  for (std::size_t o = 0; o < f.size(); ++o)
    for (std::size_t k = 0; k < f[o].size(); ++k)
      if (std::isfinite(f[o][k])) sum += std::abs(f[o][k] * r[o][k]);
  return 16 * unit_roundoff(f64) * sum / h;
}

// Measures the same error as the change of ⟨f, r⟩ when x changes by a few units of roundoff. If f magnifies
// rounding errors, the measured error is larger than the estimate above. An example is (x − μ)/σ with σ near
// 0. In a quotient with step h, the weights of the values of f have a sum of at most 1.5/h, and each value
// has a separate error.
constexpr int jitter_points = 8;
double jitter(Harness& harness, const Point& x, const Point& r) {
  const std::vector<bool> floating = harness.floating();
  harness.set(x);
  const Point at_x = harness.outputs();
  double most = 0;
  for (int i = 0; i < jitter_points; ++i) {
    harness.set(nudged(x, 4 * unit_roundoff(f64), floating, static_cast<std::uint64_t>(i)));
    Point change = harness.outputs();
    for (std::size_t o = 0; o < change.size(); ++o)
      for (std::size_t k = 0; k < change[o].size(); ++k) change[o][k] = difference(change[o][k], at_x[o][k]);
    most = std::max(most, std::abs(dot(change, r)));
  }
  harness.set(x);
  return most;
}
constexpr double jitters = 4;  // allowed error of a quotient in units of this change, divided by h

double step(double h, double x) {
  return h * std::max(1.0, std::abs(x));
}

// A cotangent, its gradient, and its name for reports.
struct Row {
  Point r, z;
  std::string text;
  std::optional<double> jitter = {};  // measured if a quotient disagrees
};

class Elements {
 public:
  Elements(Harness& harness, const Options& options, Find find)
      : harness_(harness), options_(options), find_(find) {}

  Result round(Result result, std::uint64_t seed) {
    wrong_ = 0;
    Tally tally(result);
    x_ = harness_.draw(seed);
    harness_.set(x_);
    at_x_ = harness_.outputs();
    make_rows(seed);
    for (std::size_t number = 0; const std::size_t l : harness_.floating_leaves()) {
      for (std::size_t k = 0; k < x_[l].size(); ++k) {
        element(l, number, k, tally, result);
        if (find_ == Find::any && wrong_ > 0) return result;
      }
      ++number;
    }
    return result;
  }
  // Whether enough elements are wrong at points where f is smooth. If so, the gradient is wrong, and no other
  // point can change that.
  bool sure() const { return wrong_ >= enough; }

 private:
  static constexpr int enough = 3;

  // Creates rows for two random cotangents. If there are few output elements, also creates a row for each
  // element.
  void make_rows(std::uint64_t seed) {
    rows_.clear();
    for (std::uint64_t i = 0; i < 2; ++i)
      add_row(harness_.draw_cotangents(seed + 1000 * i), "a random cotangent");
    std::int64_t outputs = 0;
    const std::vector<Shape> shapes = harness_.output_shapes();
    for (const Shape& s : shapes) outputs += numel(s);
    if (outputs > most_rows) return;
    for (std::size_t o = 0; o < shapes.size(); ++o) {
      for (std::int64_t k = 0; k < numel(shapes[o]); ++k) {
        Point one;
        for (const Shape& s : shapes) one.emplace_back(static_cast<std::size_t>(numel(s)), 0.0);
        one[o][static_cast<std::size_t>(k)] = 1;
        add_row(one, "output " + std::to_string(o) + " " + index_text(shapes[o], k));
      }
    }
  }

  void add_row(Point r, std::string text) {
    harness_.set_cotangents(r);
    Point z = harness_.gradients();
    rows_.push_back({std::move(r), std::move(z), std::move(text)});
  }

  void element(std::size_t l, std::size_t number, std::size_t k, Tally& tally, Result& result) {
    const double x = x_[l][k], h = step(options_.h, x);
    const Point numeric = slopes(harness_, l, k, x, h).four_point;
    std::vector<Point> closer;  // quotients with smaller steps
    std::optional<bool> kink;
    bool wrong = false;
    for (Row& row : rows_) {
      Comparison c = compared(row, number, k, dot(numeric, row.r), h);
      if (!passes(c) && !sure()) {
        measure_jitter(row);
        c = closer_look(row, number, l, k, c, closer);
        if (!passes(c) && !kink) kink = at_kink(l, k, row, c.analytic, c.numeric, h);
      }
      if (kink.value_or(false)) continue;
      wrong = wrong || !passes(c);
      tally.add(c, [&] {
        return "input " + std::to_string(l) + " " +
               index_text(harness_.leaves()[l].shape, static_cast<std::int64_t>(k)) + " for " + row.text;
      });
    }
    result.skipped += kink.value_or(false);
    wrong_ += wrong;
  }

  // Compares with smaller steps. If f bends within h, the quotient of a smaller step agrees with the
  // gradient. A wrong gradient disagrees with every quotient.
  Comparison closer_look(const Row& row, std::size_t number, std::size_t l, std::size_t k,
                         const Comparison& first, std::vector<Point>& closer) {
    const Comparison again = compared(row, number, k, first.numeric, first.h);
    if (passes(again)) return again;
    for (std::size_t i = 0; i < 3; ++i) {
      const double h = first.h / std::pow(4.0, static_cast<double>(i) + 1);
      if (i == closer.size()) closer.push_back(slopes(harness_, l, k, x_[l][k], h).four_point);
      const Comparison c = compared(row, number, k, dot(closer[i], row.r), h);
      if (passes(c)) return c;
    }
    return again;
  }

  void measure_jitter(Row& row) {
    if (!row.jitter) row.jitter = jitter(harness_, x_, row.r);
  }

  Comparison compared(const Row& row, std::size_t number, std::size_t k, double numeric, double h) const {
    const double noise = std::max(quotient_noise(at_x_, row.r, h), jitters * row.jitter.value_or(0) / h);
    return {row.z[number][k], numeric, options_.tol.allowed(numeric) + noise,
            options_.tol.atol / options_.tol.rtol, h};
  }
  static bool passes(const Comparison& c) { return std::abs(c.analytic - c.numeric) <= c.allowed; }

  // Whether f is not smooth within 2h of x along this element. The difference quotient n is then meaningless.
  // The function detects this in two ways. The quotient for a 64th of the step disagrees, or the two
  // one-sided slopes differ and do not converge as the step shrinks. If a second derivative exists, the
  // difference of the slopes is proportional to the step.
  bool at_kink(std::size_t l, std::size_t k, const Row& row, double a, double n, double h) {
    const double x = x_[l][k], small = h / 64;
    const auto f = [&](double at) {
      harness_.set(l, k, at);
      return harness_.outputs();
    };
    const Point mid = f(x);
    const auto jump = [&](double s) {
      const Point up = f(x + s), down = f(x - s);
      Point d = mid;
      for (std::size_t o = 0; o < d.size(); ++o)
        for (std::size_t i = 0; i < d[o].size(); ++i)
          d[o][i] = (difference(up[o][i], mid[o][i]) - difference(mid[o][i], down[o][i])) / s;
      return std::abs(dot(d, row.r));
    };
    const double at_h = jump(h), at_small = jump(small);
    const double near = dot(slopes(harness_, l, k, x, small).four_point, row.r);
    const double apart = std::abs(a - n), noise = 1e-8 * std::max(1.0, std::abs(dot(mid, row.r)));
    // If `apart` is not finite, both comparisons are false.
    return (at_small > noise && at_small > 0.5 * at_h && at_small > 0.5 * apart) ||
           (std::abs(near - n) > noise && std::abs(near - n) > 0.1 * apart);
  }

  Harness& harness_;
  const Options& options_;
  const Find find_;
  Point x_, at_x_;
  std::vector<Row> rows_;
  int wrong_ = 0;  // elements of this round that differ although f is smooth
};

}  // namespace

Slopes slopes(Harness& harness, std::size_t leaf, std::size_t element, double x, double h) {
  const auto f = [&](double at) {
    harness.set(leaf, element, at);
    return harness.outputs();
  };
  const Point mm = f(x - 2 * h), m = f(x - h), p = f(x + h), pp = f(x + 2 * h);
  harness.set(leaf, element, x);
  return slopes_of(mm, m, p, pp, h);
}

void check_elements(Harness& harness, const Options& options, Result& result, Find find) {
  Elements check(harness, options, find);
  const Result before = result;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    result = check.round(before, options.seed + round);
    result.resampled = static_cast<std::int64_t>(round);
    if (result.skipped == 0 || result.status == Status::non_finite || check.sure()) return;
    if (find == Find::any && result.status == Status::mismatch) return;
  }
  std::int64_t elements = 0;
  for (const Leaf& leaf : harness.leaves()) elements += leaf.floating ? numel(leaf.shape) : 0;
  if (static_cast<double>(result.skipped) > skippable * static_cast<double>(elements))
    Tally(result).fail(std::to_string(result.skipped) + " of " + std::to_string(elements) +
                       " elements were on a kink at every point tried: more than 5 %");
}

namespace {

// Compares two numbers for one random cotangent: the slope of the function along a direction, and the same
// slope from the gradient. The direction changes all inputs or one input. No weight of the direction or
// cotangent is near 0; otherwise an element would have no effect. No two weights are equal; otherwise two
// elements might cancel.
class Projection {
 public:
  Projection(Harness& harness, const Options& options, std::uint64_t seed)
      : harness_(harness), options_(options), x_(harness.draw(seed)) {}

  // Returns false if the function is not smooth along the direction. In that case the quotients for h and h/2
  // differ.
  bool compare(std::uint64_t seed, std::optional<std::size_t> only, Tally& tally) {
    direction_ = harness_.draw_direction(seed);
    for (std::size_t l = 0; l < x_.size(); ++l)
      for (std::size_t k = 0; k < x_[l].size(); ++k)
        direction_[l][k] *= only && l != *only ? 0 : std::max(1.0, std::abs(x_[l][k]));
    const Point r = harness_.draw_cotangents(seed);
    harness_.set(x_, r);
    const Along z = along(harness_.gradients());
    // Uses a smaller step if the function bends too much for the current step. The noise depends on the step.
    double best = 0, h = 0, noise = std::numeric_limits<double>::infinity();
    for (const double shrink : {1.0, 0.25, 0.0625}) {
      const double coarse = slope(options_.h * shrink, r), fine = slope(options_.h * shrink / 2, r);
      if (!std::isfinite(fine)) best = fine, noise = 0;
      if (!(std::abs(coarse - fine) < noise)) continue;
      noise = std::abs(coarse - fine);
      best = fine;
      h = options_.h * shrink / 2;
      if (noise <= options_.tol.allowed(fine)) break;
    }
    if (noise > 1e-6 * std::max({1.0, std::abs(best), z.size})) return false;
    double allowed = options_.tol.allowed(best) + noise;
    // Two quotients can agree by chance. If they do not confirm the gradient, the noise is measured.
    if (std::abs(z.slope - best) > allowed) allowed += jitters * jitter(harness_, x_, r) / h;
    tally.add({z.slope, best, allowed, options_.tol.atol / options_.tol.rtol, h},
              [&] { return "a random projection" + (only ? " on input " + std::to_string(*only) : ""); });
    return true;
  }

 private:
  // The directional derivative from the gradient, and the sum of the magnitudes of its terms.
  struct Along {
    double slope = 0, size = 0;
  };
  Along along(const Point& z) const {
    Along a;
    for (std::size_t number = 0; const std::size_t l : harness_.floating_leaves()) {
      for (std::size_t k = 0; k < x_[l].size(); ++k) {
        const double term = z[number][k] * direction_[l][k];
        a.slope += term;
        a.size += std::abs(term);
      }
      ++number;
    }
    return a;
  }

  double slope(double h, const Point& r) {
    const Point mm = at(-2 * h), m = at(-h), p = at(h), pp = at(2 * h);
    return dot(slopes_of(mm, m, p, pp, h).four_point, r);
  }

  Point at(double t) {
    Point x = x_;
    for (const std::size_t l : harness_.floating_leaves())
      for (std::size_t k = 0; k < x[l].size(); ++k) x[l][k] += t * direction_[l][k];
    harness_.set(x);
    return harness_.outputs();
  }

  Harness& harness_;
  const Options& options_;
  Point x_, direction_;
};

}  // namespace

void check_projections(Harness& harness, const Options& options, Result& result) {
  Tally tally(result);
  // Also checks along single inputs, because one input's gradient may be small compared with the others.
  std::vector<std::optional<std::size_t>> along(projections);
  for (const std::size_t l : harness.floating_leaves()) along.push_back(l);
  if (along.size() == projections + 1) along.pop_back();
  std::size_t done = 0;
  for (std::uint64_t i = 0; done < along.size() && i < along.size() * rounds; ++i) {
    Projection p(harness, options, options.seed + i / projections);
    if (p.compare(options.seed + 77 * i, along[done], tally))
      ++done;
    else
      ++result.resampled;
  }
  result.skipped = static_cast<std::int64_t>(along.size() - done);
  if (result.skipped > 0) tally.fail("the function is not smooth along the directions tried");
}

}  // namespace tg::gradcheck
