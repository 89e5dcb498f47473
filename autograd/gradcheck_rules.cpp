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
  if (!same(once, again)) tally.fail("a second run gives a different gradient");
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
  const Read expected = read(harness, x, r);
  const auto with = [&](HarnessOptions how, const Point& cotangents) {
    how.device = options.device;
    Harness other(c, View::contiguous, f64, how);
    return read(other, x, cotangents);
  };
  try {
    if (!same(with({.verify = true}, r).gradients, expected.gradients))
      tally.fail("in verify mode the gradient differs");
  } catch (const Error& e) {
    tally.fail(e.what());
  }
  if (!same(with({.threads = 2}, r).gradients, expected.gradients))
    tally.fail("two threads give different bits than one");
  // Exact for one use of each input; where a call uses an input more than once, the order of sums differs.
  Point four = expected.gradients;
  for (Values& v : four)
    for (double& z : v) z *= 4;
  if (!close_to(with({.twice = true}, r).gradients, four, 1e-13))
    tally.fail("used twice by two calls, the gradient is not four times that of one use");

  const std::size_t inputs = expected.gradients.size(), outputs = expected.outputs.size();
  for (std::size_t i = 0; inputs > 1 && i < inputs; ++i) {
    HarnessOptions alone;
    alone.differentiate.assign(inputs, false);
    alone.differentiate[i] = true;
    if (!same(with(alone, r).gradients, {expected.gradients[i]}))
      tally.fail("the gradient of floating input " + std::to_string(i) +
                 " differs if only that gradient is computed");
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
    if (!close_to(plain.outputs, expected.outputs, 1e-11))
      tally.fail("its decomposition gives different outputs");
    if (!close_to(plain.gradients, expected.gradients, 1e-10))
      tally.fail("its decomposition has a different gradient");
  }
}

}  // namespace tg::gradcheck
