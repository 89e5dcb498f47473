#include "autograd/gradcheck/rules.h"

#include <algorithm>
#include <utility>

namespace tg::gradcheck {

namespace {

bool same(const Point& a, const Point& b) {
  const auto same_number = [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); };
  return std::ranges::equal(
      a, b, [&](const Values& x, const Values& y) { return std::ranges::equal(x, y, same_number); });
}

bool is_zero(const Point& p) {
  const auto all_zero = [](const Values& v) {
    return std::ranges::all_of(v, [](double x) { return x == 0; });
  };
  return std::ranges::all_of(p, all_zero);
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
  const Point once = gradients_at(harness, x, r), again = harness.gradients();
  tally.rule(same(once, again), "a second run gives a different gradient");
  Point none = r;
  for (Values& v : none) v.assign(v.size(), 0.0);
  harness.set_cotangents(none);
  tally.rule(is_zero(harness.gradients()), "a zero cotangent does not give exactly zero");
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
    tally.rule(same(with({.verify = true}, r).gradients, expected.gradients),
               "in verify mode the gradient differs");
  } catch (const Error& e) {
    tally.rule(false, e.what());
  }
  tally.rule(same(with({.threads = 2}, r).gradients, expected.gradients),
             "two threads give different bits than one");
  // The comparison is exact if each call uses an input once. Otherwise the order of additions differs.
  Point four = expected.gradients;
  for (Values& v : four)
    for (double& z : v) z *= 4;
  tally.rule(close_to(with({.twice = true}, r).gradients, four, 1e-13),
             "used twice by two calls, the gradient is not four times that of one use");

  const std::size_t inputs = expected.gradients.size(), outputs = expected.outputs.size();
  for (std::size_t i = 0; inputs > 1 && i < inputs; ++i) {
    HarnessOptions alone;
    alone.differentiate.assign(inputs, false);
    alone.differentiate[i] = true;
    tally.rule(
        same(with(alone, r).gradients, {expected.gradients[i]}),
        "the gradient of floating input " + std::to_string(i) + " differs if only that gradient is computed");
  }
  for (std::size_t o = 0; outputs > 1 && o < outputs; ++o) {
    HarnessOptions without;
    without.use_output.assign(outputs, true);
    without.use_output[o] = false;
    Point zero = r;
    zero[o].assign(zero[o].size(), 0.0);
    harness.set_cotangents(zero);
    tally.rule(
        close_to(with(without, r).gradients, harness.gradients(), 1e-12),
        "without a cotangent for output " + std::to_string(o) + " the gradient is not that of a zero one");
  }
  check_decomposition(c, harness, options, result);
  check_used_twice(c, harness, options, result);
}

void check_decomposition(const Case& c, Harness& harness, const Options& options, Result& result) {
  if (!c.op || !c.op->decompose) return;
  Tally tally(result);
  const Point x = harness.draw(options.seed), r = harness.draw_cotangents(options.seed);
  HarnessOptions how{.device = options.device, .substitute = decomposed(*c.op)};
  how.forward_only = !harness.differentiable();
  Harness other(c, View::contiguous, f64, how);
  const Read expected = read(harness, x, r), plain = read(other, x, r);
  tally.rule(close_to(plain.outputs, expected.outputs, 1e-11), "its decomposition gives different outputs");
  if (harness.differentiable())
    tally.rule(close_to(plain.gradients, expected.gradients, 1e-10),
               "its decomposition has a different gradient");
}

void check_expected(const Case& c, Harness& harness, const Options& options, Result& result) {
  Tally tally(result);
  Point ones = harness.draw_cotangents(options.seed);
  for (Values& v : ones) v.assign(v.size(), 1.0);
  const Read got = read(harness, harness.draw(options.seed), ones);
  const auto compare = [&](const Point& numbers, const Point& expected, const char* what) {
    if (numbers.size() != expected.size())
      return tally.fail("the sample expects " + std::to_string(expected.size()) + " tensors as its " + what +
                        "s, there are " + std::to_string(numbers.size()));
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i].size() != expected[i].size())
        return tally.fail("the sample expects another size of " + std::string(what) + " " +
                          std::to_string(i));
      for (std::size_t k = 0; k < numbers[i].size(); ++k) {
        const double e = expected[i][k];
        const bool same = numbers[i][k] == e && std::isinf(e);  // equal infinities have distance 0
        tally.add({same ? 0 : numbers[i][k], same ? 0 : e, 1e-13 * std::max(1.0, std::abs(e))}, [&] {
          return std::string(what) + " " + std::to_string(i) + ", element " + std::to_string(k) +
                 " at a special point";
        });
      }
    }
  };
  compare(got.outputs, c.expected->outputs, "output");
  compare(got.gradients, c.expected->gradients, "gradient");
}

namespace {

bool drawn_alike(const SampleInput& a, const SampleInput& b) {
  return differentiable(a) && differentiable(b) && a.shape == b.shape && a.fill.kind == b.fill.kind &&
         a.fill.low == b.fill.low && a.fill.high == b.fill.high && a.values.empty() && b.values.empty();
}

}  // namespace

std::optional<UsedTwice> used_twice(const Case& c) {
  if (c.order > 1) return std::nullopt;  // the cotangent is an input, which would get a gradient
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    for (std::size_t j = i + 1; j < c.inputs.size(); ++j) {
      if (!drawn_alike(c.inputs[i], c.inputs[j])) continue;
      UsedTwice twice{c, i, j};
      // The second input stays in the graph but is not read. The graph up to the call is then unchanged,
      // which matters because random streams are numbered by node.
      twice.c.make = [make = c.make, i, j](DType dtype, Device device) {
        const Callable f = make(dtype, device);
        return Callable{f.parameters, [f, i, j](std::span<const Tensor> x) {
                          std::vector<Tensor> all(x.begin(), x.end());
                          all[j] = x[i];
                          return f.call(all);
                        }};
      };
      return twice;
    }
  }
  return std::nullopt;
}

void check_used_twice(const Case& c, Harness& harness, const Options& options, Result& result) {
  const auto twice = used_twice(c);
  if (!twice) return;
  Tally tally(result);
  Harness shared(twice->c, View::contiguous, f64, {.device = options.device});
  Point x = shared.draw(options.seed);
  x[twice->second] = x[twice->first];
  const Point r = shared.draw_cotangents(options.seed);
  const Point together = read(shared, x, r).gradients;
  Point apart = read(harness, x, r).gradients;
  double size = 1;
  for (const Values& v : apart) size = std::max(size, largest(v));
  // Indices of the two inputs among the floating inputs.
  std::size_t first = 0, second = 0;
  for (std::size_t l = 0; l < twice->second; ++l) {
    second += harness.leaves()[l].floating;
    if (l < twice->first) first += harness.leaves()[l].floating;
  }
  for (std::size_t k = 0; k < apart[first].size(); ++k)
    apart[first][k] += std::exchange(apart[second][k], 0.0);
  tally.rule(close_to(together, apart, 1e-12 * size),
             "with one tensor as inputs " + std::to_string(twice->first) + " and " +
                 std::to_string(twice->second) + ", the gradient is not the sum of both");
}

}  // namespace tg::gradcheck
