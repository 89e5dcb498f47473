#include "autograd/gradcheck_rules.h"

namespace tg::gradcheck {

namespace {

bool same(const Point& a, const Point& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t k = 0; k < a[i].size(); ++k)
      if (a[i][k] != b[i][k] && !(std::isnan(a[i][k]) && std::isnan(b[i][k]))) return false;
  return true;
}

double largest(const Values& v) {
  double m = 0;
  for (double x : v)
    if (std::isfinite(x)) m = std::max(m, std::abs(x));
  return m;
}

double distance(double a, double b) {
  return a == b ? 0 : std::abs(a - b);  // equal infinities
}

double farthest(const Values& a, const Values& b) {
  double m = 0;
  for (std::size_t k = 0; k < a.size(); ++k) m = std::max(m, distance(a[k], b[k]));
  return m;
}

// Puts numbers into a harness and reads both programs.
struct Read {
  Point outputs, gradients;
};
Read read(Harness& h, const Point& x, const Point& r) {
  h.set(x);
  h.set_cotangents(r);
  return {h.outputs(), h.gradients()};
}

bool close_to(const Point& a, const Point& b, double tolerance) {
  for (std::size_t i = 0; i < b.size(); ++i)
    if (!(farthest(a[i], b[i]) <= tolerance * std::max(1.0, largest(b[i])))) return false;
  return true;
}

}  // namespace

void check_zero_and_repeat(Harness& harness, const Options& options, Result& result) {
  Tally tally(result);
  const Point x = harness.draw(options.seed), r = harness.draw_cotangents(options.seed);
  harness.set(x);
  harness.set_cotangents(r);
  const Point once = harness.gradients(), again = harness.gradients();
  if (!same(once, again)) tally.fail("a second run gives another gradient");
  Point none = r;
  for (Values& v : none) v.assign(v.size(), 0.0);
  harness.set_cotangents(none);
  Point zero = once;
  for (Values& v : zero) v.assign(v.size(), 0.0);
  if (!same(harness.gradients(), zero)) tally.fail("a zero cotangent does not give exactly zero");
  harness.set_cotangents(r);
}

void check_structure(const Case& c, Harness& harness, const Options& options, Result& result) {
  Tally tally(result);
  const Point x = harness.draw(options.seed), r = harness.draw_cotangents(options.seed);
  const Read want = read(harness, x, r);
  const auto with = [&](HarnessOptions how, const Point& cotangents) {
    how.device = options.device;
    Harness other(c, View::contiguous, f64, how);
    return read(other, x, cotangents);
  };
  try {
    if (!same(with({.verify = true}, r).gradients, want.gradients))
      tally.fail("in verify mode the gradient differs");
  } catch (const Error& e) {
    tally.fail(e.what());
  }
  if (!same(with({.threads = 2}, r).gradients, want.gradients))
    tally.fail("two threads give other bits than one");
  // Exact for one use of each input; where a call uses an input more than once, the order of sums differs.
  Point four = want.gradients;
  for (Values& v : four)
    for (double& z : v) z *= 4;
  if (!close_to(with({.twice = true}, r).gradients, four, 1e-13))
    tally.fail("used twice by two calls, the gradient is not four times that of one use");

  const std::size_t inputs = want.gradients.size(), outputs = want.outputs.size();
  for (std::size_t i = 0; inputs > 1 && i < inputs; ++i) {
    HarnessOptions alone;
    alone.differentiate.assign(inputs, false);
    alone.differentiate[i] = true;
    if (!same(with(alone, r).gradients, {want.gradients[i]}))
      tally.fail("the gradient of floating input " + std::to_string(i) +
                 " differs when it alone is asked for");
  }
  for (std::size_t o = 0; outputs > 1 && o < outputs; ++o) {
    HarnessOptions without;
    without.use_output.assign(outputs, true);
    without.use_output[o] = false;
    Point zero = r;
    zero[o].assign(zero[o].size(), 0.0);
    harness.set_cotangents(zero);
    if (!close_to(with(without, r).gradients, harness.gradients(), 1e-12))
      tally.fail("without a cotangent for output " + std::to_string(o) +
                 " the gradient is not that of a zero one");
  }
  harness.set_cotangents(r);
  if (c.op && c.op->decompose) {
    const Read plain = with({.substitute = decomposed(*c.op)}, r);
    if (!close_to(plain.outputs, want.outputs, 1e-11)) tally.fail("its decomposition gives other outputs");
    if (!close_to(plain.gradients, want.gradients, 1e-10))
      tally.fail("its decomposition has another gradient");
  }
}

namespace {

// x·(1 ± u), every element with a random sign.
Point moved(const Point& x, double u, const std::vector<bool>& which, std::uint64_t seed) {
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

// The bound for each tensor of one kind, outputs or gradients.
class Bounds {
 public:
  explicit Bounds(const Point& reference)
      : reference_(reference), moved_(reference.size(), 0.0), plain_(moved_) {}

  void by_largest() { by_largest_ = true; }
  void saw_moved(const Point& p) { widen(moved_, p); }
  void saw_plain(const Point& p) { widen(plain_, p); }
  double of(std::size_t tensor, DType dtype, std::size_t steps) const {
    const double roundings = 2 * (static_cast<double>(steps) + 1);
    double size = largest(reference_[tensor]);
    if (by_largest_)
      for (const Values& v : reference_) size = std::max({size, largest(v), 1.0});
    return roundings * (unit_roundoff(dtype) * size + moved_[tensor] + smallest_positive(dtype)) +
           3 * plain_[tensor];
  }

 private:
  void widen(std::vector<double>& to, const Point& p) {
    for (std::size_t i = 0; i < to.size(); ++i) {
      const double d = farthest(p[i], reference_[i]);
      if (std::isfinite(d)) to[i] = std::max(to[i], d);
    }
  }
  const Point& reference_;
  std::vector<double> moved_, plain_;
  bool by_largest_ = false;
};

void compare(const Point& got, const Point& want, const Bounds& bounds, DType dtype, std::size_t steps,
             const char* what, const std::vector<Shape>& shapes, Tally& tally) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double allowed = bounds.of(i, dtype, steps), scale = largest(want[i]);
    for (std::size_t k = 0; k < want[i].size(); ++k) {
      if (got[i][k] == want[i][k] && std::isinf(want[i][k])) continue;
      tally.add({got[i][k], want[i][k], allowed, scale, 0}, [&] {
        return std::string(what) + " " + std::to_string(i) + " " +
               index_text(shapes[i], static_cast<std::int64_t>(k));
      });
    }
  }
}

}  // namespace

void check_dtype(const Case& c, View view, DType dtype, Harness& wide, const Options& options, Result& result,
                 const Replay::Substitute& substitute) {
  Tally tally(result);
  Harness narrow(c, view, dtype, {.device = options.device, .substitute = substitute});
  const Point x = narrow.draw(options.seed), r = narrow.draw_cotangents(options.seed);
  const Read got = read(narrow, x, r), want = read(wide, x, r);
  for (const Point* p : {&want.outputs, &want.gradients})
    for (const Values& v : *p)
      if (largest(v) > 0.25 * largest_finite(dtype)) {
        result.note = "not compared: the values exceed " + std::string(tg::name_of(dtype));
        return;
      }
  Bounds outputs(want.outputs), gradients(want.gradients);
  if (c.op && c.op->decompose) {
    Harness plain(c, view, dtype, {.substitute = decomposed(*c.op), .fuse = false});
    const Read p = read(plain, x, r);
    outputs.saw_plain(p.outputs);
    gradients.saw_plain(p.gradients);
  }
  std::vector<bool> floating, all(r.size(), true);
  std::vector<Shape> input_shapes;
  for (const Leaf& leaf : narrow.leaves()) {
    floating.push_back(leaf.floating);
    if (leaf.floating) input_shapes.push_back(leaf.shape);
  }
  const auto judge = [&](std::uint64_t draws, Result& into) {
    const double u = unit_roundoff(dtype);
    for (std::uint64_t s = 0; s < draws; ++s) {
      const Read m = read(wide, moved(x, u, floating, s), moved(r, u, all, s + 100));
      outputs.saw_moved(m.outputs);
      gradients.saw_moved(m.gradients);
    }
    Tally t(into);
    compare(got.outputs, want.outputs, outputs, dtype, narrow.forward_steps(), "output",
            narrow.output_shapes(), t);
    compare(got.gradients, want.gradients, gradients, dtype, narrow.backward_steps(),
            "gradient of floating input", input_shapes, t);
  };
  const Result before = result;
  judge(4, result);
  if (result.status == Status::mismatch) {  // a rounding may have crossed a kink: see what more of them do
    result = before;
    outputs.by_largest();
    gradients.by_largest();
    judge(40, result);
  }
  check_zero_and_repeat(narrow, options, result);
}

}  // namespace tg::gradcheck
