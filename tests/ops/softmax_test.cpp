// Compares softmax, log_softmax and logsumexp with plain loops on every view and axis. Also tests limits.
// Derivatives are compared with closed forms and plain ops.
#include "tests/reference/softmax.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

// Applies f to each line along the axis.
template <class F>
Vector along(const Vector& x, const Shape& shape, int axis, F f) {
  Vector y(x.size());
  const std::int64_t n = shape[axis], step = row_major_strides(shape)[axis];
  for (std::int64_t first = 0; first < numel(shape); ++first) {
    if (first / step % n != 0) continue;
    Vector line;
    for (std::int64_t i = 0; i < n; ++i) line.push_back(x[first + i * step]);
    line = f(line);
    for (std::int64_t i = 0; i < n; ++i) y[first + i * step] = line[i];
  }
  return y;
}

double log_sum(const Vector& x) {
  double top = -INFINITY, total = 0;
  for (double xi : x) top = std::max(top, xi);
  for (double xi : x) total += std::exp(xi - top);
  return top + std::log(total);
}

TEST(Softmax, AgreesWithThreePassesOnEveryViewAxisAndType) {
  for (const Shape& shape : {Shape{5, 67}, Shape{3, 4, 5}, Shape{2, 2500}, Shape{9}, Shape{1, 1}})
    for (int axis = 0; axis < shape.size(); ++axis)
      for (View view : all_views)
        for (DType dtype : float_dtypes) {
          SCOPED_TRACE(shape.text() + " axis " + std::to_string(axis) + " view " + std::to_string(int(view)) +
                       " " + std::string(name_of(dtype)));
          Graph g;
          const Given x = given(g, shape, dtype, view, 1, -6, 6);
          const auto y = run_checked(
              {softmax(x.tensor, axis), log_softmax(x.tensor, axis), logsumexp(x.tensor, {axis}, true)},
              {x.feed()});
          const double tolerance = (dtype == f64 ? 1e-13 : 2e-6) + rounding(dtype);
          EXPECT_TRUE(
              close(doubles(y[0]), along(x.values, shape, axis, reference::three_pass_softmax), tolerance));
          const auto minus_log_sum = [](Vector line) {
            const double l = log_sum(line);
            for (double& e : line) e -= l;
            return line;
          };
          EXPECT_TRUE(close(doubles(y[1]), along(x.values, shape, axis, minus_log_sum), tolerance));
          Vector expected;
          const Vector sums = along(x.values, shape, axis,
                                    [](const Vector& line) { return Vector(line.size(), log_sum(line)); });
          const std::int64_t n = shape[axis], step = row_major_strides(shape)[axis];
          for (std::int64_t i = 0; i < numel(shape); ++i)
            if (i / step % n == 0) expected.push_back(sums[i]);
          EXPECT_TRUE(close(doubles(y[2]), expected, tolerance));
        }
}

TEST(Softmax, RowsSumToOne) {
  Graph g;
  const Given x = given(g, {40, 5000}, f32, View::contiguous, 1, -50, 50);
  const auto y = run_checked({sum(cast(softmax(x.tensor), f64), {1})}, {x.feed()});
  for (double s : doubles(y[0])) EXPECT_NEAR(s, 1, 1e-6);
}

TEST(Softmax, SumsAreRescaledWhenTheMaximumRises) {  // each chunk of the online normalizer has a new maximum
  Graph g;
  const std::int64_t n = 10000;
  const Tensor x = g.input("x", {2, n}, f64);
  Vector rising, falling;
  for (std::int64_t i = 0; i < n; ++i) rising.push_back(0.1 * double(i) - 500);
  falling.assign(rising.rbegin(), rising.rend());
  Vector both = rising;
  both.insert(both.end(), falling.begin(), falling.end());
  const auto y = run_checked({softmax(x), logsumexp(x, {1})}, {{x, both}});
  EXPECT_TRUE(close(doubles(y[0]), along(both, {2, n}, 1, reference::three_pass_softmax), 1e-13));
  EXPECT_TRUE(close(doubles(y[1]), {log_sum(rising), log_sum(falling)}, 1e-14));
}

// The maximum must be found at any position. Otherwise, the exponential of a very large logit would overflow.
// A logit far below the rest must not affect the result.
TEST(Softmax, FindsOneLargeLogitAtEveryPosition) {
  for (const DType dtype : {f32, f64})
    for (const double large : {1e4, -1e4})
      for (const std::int64_t n : {1, 7, 100, 1100})
        for (const int axis : {0, 1}) {
          if (axis == 0 && n > 100) continue;
          SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::to_string(large) +
                       ", n = " + std::to_string(n) + ", axis " + std::to_string(axis));
          Graph g;
          const Tensor x = g.input("x", {n, n}, dtype);
          Array xs({n, n}, dtype);
          for (std::int64_t i = 0; i < n; ++i) xs.set(i * n + i, large);
          const auto y = run_checked({softmax(x, axis), log_softmax(x, axis), logsumexp(x, {axis}),
                                      cross_entropy(axis == 0 ? transpose(x, 0, 1) : x, arange(g, 0, n),
                                                    {.reduction = Reduction::none})},
                                     {{x, xs}});
          // Returns the expected result for a row with one element `large` and n - 1 zeros.
          const double sum = large > 0 || n == 1 ? large : std::log(static_cast<double>(n - 1));
          Vector p, log_p;
          for (std::int64_t i = 0; i < n; ++i)
            for (std::int64_t j = 0; j < n; ++j)
              log_p.push_back((i == j ? large : 0) - sum), p.push_back(std::exp(log_p.back()));
          const double tolerance = dtype == f64 ? 1e-13 : 1e-6;
          ASSERT_TRUE(close(doubles(y[0]), p, tolerance));
          ASSERT_TRUE(close(doubles(y[1]), log_p, tolerance));
          ASSERT_TRUE(close(doubles(y[2]), Vector(static_cast<std::size_t>(n), sum), tolerance));
          ASSERT_TRUE(close(doubles(y[3]), Vector(static_cast<std::size_t>(n), sum - large), tolerance));
        }
}

TEST(Softmax, HandlesInfinitiesAndPropagatesNaN) {
  Graph g;
  const Tensor x = g.input("x", {4, 3});
  const float inf = INFINITY;
  const auto y =
      run_checked({softmax(x), log_softmax(x), logsumexp(x, {1})},
                  {{x, std::vector<float>{1e38f, -1e38f, 0, -inf, 0, 0, -inf, -inf, -inf, 1, NAN, 2}}});
  const Vector p = doubles(y[0]), l = doubles(y[1]), s = doubles(y[2]);
  EXPECT_EQ(Vector(p.begin(), p.begin() + 6), (Vector{1, 0, 0, 0, 0.5, 0.5}));
  EXPECT_EQ(l[3], -inf);
  EXPECT_NEAR(l[4], -std::log(2.0), 1e-7);
  for (int i = 6; i < 12; ++i) EXPECT_TRUE(std::isnan(p[i]) && std::isnan(l[i])) << i;
  EXPECT_EQ(s[2], -inf);
  EXPECT_TRUE(std::isnan(s[3]));
}

TEST(Softmax, GradientMatchesTheSeed) {
  Graph g;
  const Given x = given(g, {31}), z = given(g, {31}, f64, View::contiguous, 2);
  const auto v = run_checked({gradients(softmax(x.tensor), {x.tensor}, z.tensor)[0]}, {x.feed(), z.feed()});
  Vector expected(31, 0.0);
  reference::softmax_backward(reference::three_pass_softmax(x.values), z.values, expected);
  EXPECT_TRUE(close(doubles(v[0]), expected));
}

// Compares each op with its definition in plain ops.
TEST(Softmax, FirstAndSecondDerivativesMatchThePlainOps) {
  for (const Shape& shape : {Shape{4, 21}, Shape{3, 5, 2}})
    for (std::int64_t axis : {0, 1})
      for (View view : {View::contiguous, View::transposed, View::expanded}) {
        Graph g;
        const Given x = given(g, shape, f64, view), c = given(g, shape, f64, View::contiguous, 2),
                    d = given(g, shape, f64, View::contiguous, 3);
        const Tensor t = x.tensor, e = exp(t), total = sum(e, {axis}, true);
        const std::pair<Tensor, Tensor> pairs[] = {{softmax(t, axis), e / total},
                                                   {log_softmax(t, axis), t - log(total)},
                                                   {logsumexp(t, {axis}, true) * t, log(total) * t},
                                                   {logsumexp(t) * t, log(sum(e)) * t}};
        std::vector<Tensor> all;
        for (const auto& [fused, plain] : pairs)
          for (const Tensor& y : {fused, plain}) {
            const Tensor z = gradients(y, {t}, c.tensor)[0];
            const auto zz = gradients(z, {t, c.tensor}, d.tensor);
            all.insert(all.end(), {y, z, zz[0], zz[1]});
          }
        const auto v = run_checked(all, {x.feed(), c.feed(), d.feed()});
        for (std::size_t p = 0; p < v.size(); p += 8)
          for (std::size_t i = p; i < p + 4; ++i)
            EXPECT_TRUE(close(doubles(v[i]), doubles(v[i + 4]))) << "pair " << p / 8 << ", result " << i - p;
      }
}

TEST(Softmax, GradientOfLogSumIsZeroIfEverythingIsMasked) {
  Graph g;
  const Tensor x = g.input("x", {2, 2}, f64);
  const Tensor z = gradients(logsumexp(x, {1}), {x}, g.constant(Array::of<double>({2}, {1, 1})))[0];
  const auto v = run_checked({z}, {{x, Vector{-INFINITY, -INFINITY, 0, 0}}});
  EXPECT_EQ(doubles(v[0]), (Vector{0, 0, 0.5, 0.5}));
}

TEST(Softmax, AcceptsEmptyTensorsAndRefusesMissingAxes) {
  Graph g;
  const Given x = given(g, {0, 4});
  EXPECT_EQ(run_checked({softmax(x.tensor, 0)}, {x.feed()})[0].shape(), (Shape{0, 4}));
  EXPECT_EQ(doubles(run_checked({logsumexp(x.tensor, {0})}, {x.feed()})[0]), Vector(4, -INFINITY));
  EXPECT_THROW(softmax(x.tensor, 2), ShapeError);
  EXPECT_THROW(softmax(g.input("i", {2}, i64)), DTypeError);
}

}  // namespace
