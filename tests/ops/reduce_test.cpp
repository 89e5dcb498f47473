// Compares reductions with plain loops in f64 on every view and type. Also tests guarantees about order, NaN,
// ties and empty axes.
#include "core/base/piece_size.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

// Combines the elements over the reduced axes by f(accumulated, element). Results are row-major over the
// other axes.
template <class F>
Vector fold(const Vector& x, const Shape& shape, const Axes& axes, double start, F f) {
  Shape kept = shape;
  for (std::int64_t a : axes) kept[static_cast<int>(a)] = 1;
  Vector out(numel(kept), start);
  const Strides strides = row_major_strides(kept);
  for (std::int64_t e = 0; e < numel(shape); ++e) {
    std::int64_t rest = e, at = 0;
    for (int i = shape.size() - 1; i >= 0; --i) {
      if (!axes.contains(i)) at += rest % shape[i] * strides[i];
      rest /= shape[i];
    }
    out[at] = f(out[at], x[e]);
  }
  return out;
}

struct Kind {
  const char* name;
  Tensor (*op)(TensorArg, const Axes&, bool);
  double start;
  double (*f)(double, double);
};
const Kind kinds[] = {{"sum", sum, 0, [](double a, double b) { return a + b; }},
                      {"mean", mean, 0, [](double a, double b) { return a + b; }},
                      {"sum_squares", sum_squares, 0, [](double a, double b) { return a + b * b; }},
                      {"prod", prod, 1, [](double a, double b) { return a * b; }},
                      {"max", max, -INFINITY, [](double a, double b) { return std::max(a, b); }},
                      {"min", min, INFINITY, [](double a, double b) { return std::min(a, b); }}};

struct Where {
  Shape shape;
  Axes axes;
};
// Reduces rows, columns, both, or no axes. Some sizes are near vector widths. Others are larger than blocks
// and pieces.
const Where places[] = {{{7}, {0}},
                        {{5, 67}, {1}},
                        {{67, 5}, {0}},
                        {{3, 17, 33}, {1}},
                        {{3, 17, 33}, {0, 2}},
                        {{2, 3, 4, 5}, {0, 1, 2, 3}},
                        {{2, 3, 4, 5}, {1, 3}},
                        {{4, 1, 6}, {1}},
                        {{}, {}},
                        {{40, 2100}, {0}},
                        {{2, 70000}, {1}},
                        {{2, 20000, 7}, {1}}};

TEST(Reduce, AgreesWithPlainLoopsOnEveryViewAndType) {
  for (const Kind& k : kinds)
    for (const Where& p : places)
      for (View view : all_views)
        for (DType dtype : {f64, f32}) {
          if (numel(p.shape) > 10000 && (view == View::sliced || view == View::expanded)) continue;
          SCOPED_TRACE(std::string(k.name) + " " + p.shape.text() + " over " + p.axes.text() + " view " +
                       std::to_string(int(view)) + " " + std::string(name_of(dtype)));
          Graph g;
          const Given x = given(g, p.shape, dtype, view, 1, 0.9, 1.1);
          // normalize_axes converts an empty list to all axes.
          Axes axes = p.axes;
          Vector expected = fold(x.values, p.shape, axes, k.start, k.f);
          const double n = static_cast<double>(numel(p.shape)) / static_cast<double>(expected.size());
          if (k.op == static_cast<Tensor (*)(TensorArg, const Axes&, bool)>(mean))
            for (double& w : expected) w /= n;
          const Tensor y = k.op(x.tensor, axes, false);
          // In sums, each block of elements has a few sequential additions. In products, each factor has one
          // rounding.
          const double steps = k.start == 1 ? n : 4 + n / 256;
          EXPECT_TRUE(close(doubles(run_checked({y}, {x.feed()})[0]), expected, 4 * steps * rounding(dtype)));
        }
}

TEST(Reduce, SixteenBitTypesAccumulateInF32) {
  for (DType dtype : {bf16, f16}) {
    Graph g;
    const Given x = given(g, {300, 3}, dtype);
    const auto y = run_checked({sum(x.tensor, {0}), sum_squares(x.tensor, {0})}, {x.feed()});
    EXPECT_EQ(y[0].dtype(), dtype);
    EXPECT_EQ(y[1].dtype(), f32);
    EXPECT_TRUE(close(doubles(y[0]),
                      fold(x.values, {300, 3}, {0}, 0, [](double a, double b) { return a + b; }),
                      rounding(dtype) + 300 * rounding(f32)));
    EXPECT_TRUE(close(doubles(y[1]),
                      fold(x.values, {300, 3}, {0}, 0, [](double a, double b) { return a + b * b; }),
                      300 * rounding(f32)));
  }
}

TEST(Reduce, SumsOfManyF32NumbersKeepTheirDigits) {
  if (has_small_pieces) GTEST_SKIP() << "sums of so many pieces, in f32, lose more digits";
  Graph g;
  const std::int64_t n = 1 << 22;
  const Tensor x = g.input("x", {n}), columns = x.view({n / 2, 2});
  std::vector<float> xs(n, 0.1f);
  const auto y = run_checked({sum(x), sum(columns, {0})}, {{x, xs}});
  const double expected = 0.1f * double(n);
  EXPECT_NEAR(y[0].item<float>(), expected, expected * 1e-6);
  EXPECT_NEAR(y[1].at(0), expected / 2, expected / 2 * 2e-6);
}

TEST(Reduce, IntegersAndBooleansSumToI64) {
  Graph g;
  const Tensor a = g.input("a", {2, 2}, u8), b = g.input("b", {3}, boolean), c = g.input("c", {2}, i32);
  const auto y = run_checked({sum(a, {0}), sum(b), prod(c), max(a), min(c)},
                             {{a, std::vector<std::uint8_t>{200, 1, 100, 2}},
                              {b, Array::of<bool>({3}, {true, false, true})},
                              {c, std::vector<std::int32_t>{100000, -100000}}});
  EXPECT_EQ(y[0].values<std::int64_t>(), (std::vector<std::int64_t>{300, 3}));
  EXPECT_EQ(y[1].item<std::int64_t>(), 2);
  EXPECT_EQ(y[2].item<std::int64_t>(), -10000000000);
  EXPECT_EQ(y[3].item<std::uint8_t>(), 200);
  EXPECT_EQ(y[4].item<std::int32_t>(), -100000);
}

TEST(Reduce, ExtremesPropagateNaN) {
  for (std::size_t at : {std::size_t{0}, std::size_t{70}, std::size_t{99}}) {
    Graph g;
    const Tensor x = g.input("x", {100});
    std::vector<float> xs(100, 1.f);
    xs[at] = NAN;
    const auto y = run_checked({max(x), min(x), max(x.view({50, 2}), {0})}, {{x, xs}});
    EXPECT_TRUE(std::isnan(y[0].item<float>()) && std::isnan(y[1].item<float>()));
    EXPECT_TRUE(std::isnan(y[2].at(at % 2)));
    EXPECT_EQ(y[2].at(1 - at % 2), 1);
  }
}

// Columns are processed in vectors. Columns after the last vector are processed one at a time. Both must
// combine rows in the same order, because the sign of a zero depends on the order.
TEST(Reduce, EqualColumnsMatchBitwise) {
  for (const Kind& k : kinds)
    for (DType dtype : {f64, f32})
      for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 9, 259})
        for (const std::int64_t columns : {1, 67, 515})
          for (const bool zeros : {true, false}) {
            Graph g;
            const Tensor x = g.input("x", {rows, columns}, dtype);
            Array a(x.shape(), dtype);
            for (std::int64_t i = 0; i < a.numel(); ++i) {
              const std::int64_t r = i / columns;
              a.set(i,
                    zeros ? (r * 5 % 3 == 0 ? 0.0 : -0.0) : 0.9 + 0.2 * static_cast<double>(r * 7 % 10) / 9);
            }
            const Array y = run_checked({k.op(x, {0}, false)}, {{x, a}})[0];
            for (std::int64_t c = 1; c < columns; ++c)
              ASSERT_TRUE(y.at(c) == y.at(0) && std::signbit(y.at(c)) == std::signbit(y.at(0)))
                  << k.name << " of " << rows << " " << name_of(dtype) << " in column " << c << " of "
                  << columns << (zeros ? ": zeros" : "");
          }
}

// Among equal numbers, the first one must be the extreme. The sign of a zero shows which one is returned. The
// result must depend neither on the processor's vectors nor on the division of a long row.
TEST(Reduce, ExtremeOfZerosIsTheFirst) {
  for (const DType dtype : {f64, f32, bf16})
    for (const std::int64_t n : {2, 3, 5, 8, 9, 16, 17, 31, 33, 64, 100, 1025, 70000})
      for (const double first : {0.0, -0.0}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + " of " + std::to_string(n) + " from " +
                     std::to_string(first));
        Graph g;
        const Tensor x = g.input("x", {n}, dtype);
        Array a(x.shape(), dtype);
        a.set(0, first);
        for (std::int64_t i = 1; i < n; ++i) a.set(i, -first);
        for (const Array& y : run_checked({max(x), min(x)}, {{x, a}}))
          EXPECT_EQ(std::signbit(y.at(0)), std::signbit(first));
      }
}

TEST(Reduce, OverNothingGivesTheNeutralElementOrIsRefused) {
  Graph g;
  const Given x = given(g, {0, 3});
  const auto y =
      run_checked({sum(x.tensor, {0}), prod(x.tensor, {0}), mean(x.tensor), sum(x.tensor, {1})}, {x.feed()});
  EXPECT_EQ(doubles(y[0]), (Vector{0, 0, 0}));
  EXPECT_EQ(doubles(y[1]), (Vector{1, 1, 1}));
  EXPECT_TRUE(std::isnan(y[2].item<double>()));
  EXPECT_EQ(y[3].shape(), Shape{0});
  EXPECT_THROW(max(x.tensor, {0}), ShapeError);
  EXPECT_NO_THROW(max(x.tensor, {1}));
  EXPECT_THROW(sum(x.tensor, {2}), ShapeError);
}

TEST(Reduce, PositionsOfExtremesAreTheFirstOnes) {
  for (const Where& p : places)
    for (View view : {View::contiguous, View::transposed, View::expanded})
      for (DType dtype : {f64, f32, f16, i32}) {
        SCOPED_TRACE(p.shape.text() + " over " + p.axes.text() + " " + std::string(name_of(dtype)));
        Graph g;
        const Given x = given(g, p.shape, dtype, view, 1, -50, 50);
        Shape kept = p.shape;
        for (std::int64_t a : p.axes) kept[static_cast<int>(a)] = 1;
        const Strides strides = row_major_strides(kept);
        Vector best(numel(kept), -INFINITY), seen(numel(kept), 0.0), place(numel(kept), 0.0);
        for (std::int64_t i = 0; i < numel(p.shape); ++i) {
          std::int64_t rest = i, at = 0;
          for (int a = p.shape.size() - 1; a >= 0; --a) {
            if (!p.axes.contains(a)) at += rest % p.shape[a] * strides[a];
            rest /= p.shape[a];
          }
          if (x.values[i] > best[at]) best[at] = x.values[i], place[at] = seen[at];
          ++seen[at];
        }
        const Tensor y = argmax(x.tensor, p.axes);
        EXPECT_EQ(y.dtype(), i64);
        EXPECT_EQ(doubles(run_checked({y}, {x.feed()})[0]), place);
      }
}

TEST(Reduce, PositionOfANaNMatchesTheExtreme) {
  Graph g;
  const Tensor x = g.input("x", {100});
  std::vector<float> xs(100, 1.f);
  xs[40] = 9, xs[60] = -9;
  const auto y = run_checked({argmax(x), argmin(x)}, {{x, xs}});
  EXPECT_EQ(y[0].item<std::int64_t>(), 40);
  EXPECT_EQ(y[1].item<std::int64_t>(), 60);
  xs[70] = xs[80] = NAN;
  const auto z = run_checked({argmax(x), argmin(x)}, {{x, xs}});
  EXPECT_EQ(z[0].item<std::int64_t>(), 70);
  EXPECT_EQ(z[1].item<std::int64_t>(), 70);
}

TEST(Reduce, AnyAndAllTestForNonzero) {
  Graph g;
  const Tensor x = g.input("x", {3, 2});
  const auto y = run_checked({any(x, {1}), all(x, {1}), any(x), all(x)},
                             {{x, std::vector<float>{0, 0, 0.5f, 0, -1, NAN}}});
  EXPECT_EQ(doubles(y[0]), (Vector{0, 1, 1}));
  EXPECT_EQ(doubles(y[1]), (Vector{0, 0, 1}));
  EXPECT_EQ(doubles(y[2]), Vector{1});
  EXPECT_EQ(doubles(y[3]), Vector{0});
}

TEST(Reduce, KeepdimKeepsReducedAxesWithSizeOne) {
  Graph g;
  const Given x = given(g, {2, 3, 4});
  EXPECT_EQ(sum(x.tensor, {1}, true).shape(), (Shape{2, 1, 4}));
  EXPECT_EQ(sum(x.tensor, {0, -1}).shape(), Shape{3});
  EXPECT_EQ(sum(x.tensor).shape(), Shape{});
}

TEST(Reduce, EqualExtremesShareTheGradient) {
  Graph g;
  const Tensor x = g.input("x", {2, 3}, f64);
  const Tensor z = gradients(sum(max(x, {1}) * 6), {x})[0];
  const auto v = eval(z, {{x, Vector{1, 5, 5, 2, 1, 0}}}).values<double>();
  EXPECT_EQ(v, (Vector{0, 3, 3, 6, 0, 0}));
}

TEST(Reduce, GradientOfAProductSurvivesZeros) {
  Graph g;
  const Tensor x = g.input("x", {3, 3}, f64);
  const Tensor z = gradients(sum(prod(x, {1})), {x})[0];
  const auto v = eval(z, {{x, Vector{2, 3, 4, 2, 0, 4, 0, 0, 4}}}).values<double>();
  EXPECT_EQ(v, (Vector{12, 8, 6, 0, 8, 0, 0, 0, 0}));
}

// Computes the derivative of Π x with respect to the elements `by`. For each further order, it is contracted
// with c. The result is a sum over all ordered choices of `order` more elements. Each term multiplies the c
// of the chosen elements and the x of all remaining elements.
double product_derivative(const Vector& x, const Vector& c, std::vector<std::size_t> by, int order) {
  if (order == 0) {
    double y = 1;
    for (std::size_t i = 0; i < x.size(); ++i)
      if (std::find(by.begin(), by.end(), i) == by.end()) y *= x[i];
    return y;
  }
  double y = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::find(by.begin(), by.end(), i) != by.end()) continue;
    std::vector<std::size_t> more = by;
    more.push_back(i);
    y += c[i] * product_derivative(x, c, more, order - 1);
  }
  return y;
}

// For any axes, the memory order of x lets the reduced axes merge into rows.
TEST(Reduce, DerivativesOfAProductAreExactWithAnyNumberOfZeros) {
  for (DType dtype : {f64, f32, bf16, f16})
    for (std::int64_t n : {1, 2, 3, 7, 8, 9, 17})
      for (int zeros = 0; zeros <= 4 && zeros <= n; ++zeros)
        for (int form = 0; form < 3; ++form) {
          SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::to_string(n) + " elements, " +
                       std::to_string(zeros) + " zeros, form " + std::to_string(form));
          Vector x, c;  // powers of two and small integers, so every product is exact in all types
          for (std::int64_t i = 0; i < n; ++i) {
            x.push_back(i * 5 % n < zeros ? 0 : i % 3 == 0 ? -1 : i % 3 == 1 ? 2 : 0.5);
            c.push_back(i % 2 == 0 ? 1 : -2);
          }
          Graph g;
          const Shape shape = form == 0 ? Shape{n} : form == 1 ? Shape{n, 1} : Shape{1, n, 1};
          const Tensor in = g.input("x", shape, dtype), w = g.input("c", shape, dtype);
          const Tensor y = form == 0 ? prod(in) : form == 1 ? prod(in, {0}) : prod(in, {0, 1}, true);
          Array values(shape, dtype), weights(shape, dtype);
          for (std::int64_t i = 0; i < n; ++i) values.set(i, x[i]), weights.set(i, c[i]);
          std::vector<Tensor> z{gradients(sum(y), {in})[0]};
          while (z.size() < 3) z.push_back(gradients(sum(z.back() * w), {in})[0]);
          const auto got = eval(z, {{in, values}, {w, weights}});
          for (int order = 0; order < 3; ++order)
            for (std::int64_t i = 0; i < n; ++i) {
              const double e = product_derivative(x, c, {static_cast<std::size_t>(i)}, order);
              // In a 16-bit type, a sum may be rounded once for each term.
              const double rounds = order == 0 ? 0 : 8 * static_cast<double>(n) * rounding(dtype);
              double size = 0;
              for (std::int64_t k = 0; k < n; ++k)
                size =
                    std::max(size, std::abs(product_derivative(x, c, {static_cast<std::size_t>(k)}, order)));
              EXPECT_NEAR(got[order].at(i), e, rounds * std::max(size, 64.0)) << order << " " << i;
            }
        }
}

TEST(Reduce, GradientOfAProductNeedsNoDivision) {
  Graph g;
  const Tensor x = g.input("x", {4, 2}, f32);
  const float infinity = INFINITY;
  const auto v = eval(gradients(sum(prod(x, {1})), {x})[0],
                      {{x, std::vector<float>{1e-30f, 1e-30f, 1e30f, 1e30f, infinity, 2, -0.f, infinity}}})
                     .values<float>();
  EXPECT_EQ(v, (std::vector<float>{1e-30f, 1e-30f, 1e30f, 1e30f, 2, infinity, infinity, -0.f}));
  const Tensor none = g.input("none", {0, 3}, f64);
  const auto z = gradients(sum(prod(none, {0})), {none})[0];
  EXPECT_EQ(eval(z, {{none, Vector{}}}).numel(), 0);
}

// The gradient splits axes into slices at several levels. The size is not divisible by 8.
TEST(Reduce, GradientOfALongProductMatchesQuotients) {
  for (const Where& p : {Where{{3, 1000}, {1}}, Where{{1000, 3}, {0}}, Where{{5, 3, 77}, {0, 2}}}) {
    Graph g;
    const Given x = given(g, p.shape, f64, View::contiguous, 1, 0.9, 1.1);
    const Tensor y = prod(x.tensor, p.axes, true);
    const auto v = run_checked({gradients(sum(y), {x.tensor})[0], y / x.tensor}, {x.feed()});
    EXPECT_TRUE(close(doubles(v[0]), doubles(v[1]), 1e-12)) << p.shape.text();
  }
}

TEST(Reduce, GradientsAreTheClosedForms) {
  Graph g;
  const Given x = given(g, {4, 5}), c = given(g, {4}, f64, View::contiguous, 2);
  const auto gradient = [&](Tensor y) { return gradients(sum(y * c.tensor), {x.tensor})[0]; };
  const auto z = run_checked(
      {gradient(mean(x.tensor, {1})), gradient(sum_squares(x.tensor, {1})), gradient(var(x.tensor, {1}))},
      {x.feed(), c.feed()});
  Vector mean_z, squares_z, var_z;
  for (int i = 0; i < 4; ++i) {
    double m = 0;
    for (int j = 0; j < 5; ++j) m += x.values[i * 5 + j] / 5;
    for (int j = 0; j < 5; ++j) {
      const double ci = c.values[i], xij = x.values[i * 5 + j];
      mean_z.push_back(ci / 5), squares_z.push_back(2 * xij * ci), var_z.push_back(2 * (xij - m) / 4 * ci);
    }
  }
  EXPECT_TRUE(close(doubles(z[0]), mean_z));
  EXPECT_TRUE(close(doubles(z[1]), squares_z));
  EXPECT_TRUE(close(doubles(z[2]), var_z));
}

}  // namespace
