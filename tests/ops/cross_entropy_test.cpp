// Compares cross_entropy with plain loops, and its gradient with the gradient of its decomposition.
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

Vector plain_rows(const Vector& x, std::size_t n, const std::vector<std::int64_t>& t, std::int64_t ignored,
                  double smoothing) {
  Vector loss;
  for (std::size_t r = 0; r < t.size(); ++r) {
    const double* row = x.data() + r * n;
    double top = -INFINITY, total = 0, mean = 0;
    for (std::size_t i = 0; i < n; ++i) top = std::max(top, row[i]);
    for (std::size_t i = 0; i < n; ++i) total += std::exp(row[i] - top), mean += row[i] / double(n);
    const double lse = top + std::log(total);
    loss.push_back(t[r] == ignored ? 0 : lse - (1 - smoothing) * row[t[r]] - smoothing * mean);
  }
  return loss;
}

std::vector<std::int64_t> some_classes(std::int64_t rows, std::int64_t n) {
  std::vector<std::int64_t> t;
  for (std::int64_t r = 0; r < rows; ++r) t.push_back((r * 7 + 3) % n);
  return t;
}

TEST(CrossEntropy, AgreesWithPlainLoopsOnEveryViewAndType) {
  for (const Shape& shape : {Shape{6, 5}, Shape{2, 3, 65}, Shape{3, 5000}, Shape{40, 1}})
    for (View view : all_views)
      for (DType dtype : float_dtypes)
        for (double smoothing : {0., 0.1}) {
          SCOPED_TRACE(shape.text() + " view " + std::to_string(int(view)) + " " +
                       std::string(name_of(dtype)));
          Graph g;
          const Given x = given(g, shape, dtype, view, 1, -8, 8);
          Shape rows = shape;
          rows.erase(rows.size() - 1);
          const auto t = some_classes(numel(rows), shape.back());
          const Tensor targets = g.input("t", rows, i64);
          const auto n = static_cast<std::size_t>(shape.back());
          CrossEntropyOptions o{.ignore_index = t[1], .label_smoothing = smoothing};
          std::vector<Tensor> losses;
          for (Reduction r : {Reduction::none, Reduction::sum, Reduction::mean}) {
            o.reduction = r;
            losses.push_back(cross_entropy(x.tensor, targets, o));
            EXPECT_EQ(losses.back().dtype(), compute_type(dtype));
          }
          const auto v = run_checked(losses, {x.feed(), {targets, t}});
          const Vector expected = plain_rows(x.values, n, t, t[1], smoothing);
          double total = 0, counted = 0;
          for (std::size_t r = 0; r < t.size(); ++r) total += expected[r], counted += t[r] != t[1];
          const double tolerance = dtype == f64 ? 1e-13 : 1e-6;
          EXPECT_TRUE(close(doubles(v[0]), expected, tolerance));
          EXPECT_NEAR(v[1].at(0), total, tolerance * 40 * 16);
          EXPECT_NEAR(v[2].at(0), total / std::max(counted, 1.), tolerance * 16);
        }
}

TEST(CrossEntropy, FirstAndSecondDerivativesMatchThePlainOps) {
  for (View view : {View::contiguous, View::transposed, View::expanded})
    for (double smoothing : {0., 0.1}) {
      Graph g;
      const Given x = given(g, {6, 21}, f64, view), c = given(g, {6, 21}, f64, View::contiguous, 2);
      const Tensor targets = g.input("t", {6}, i32);
      const std::vector<std::int32_t> t{3, 0, 20, 5, 3, 7};
      const CrossEntropyOptions o{.ignore_index = 5, .label_smoothing = smoothing};
      std::vector<double> distribution;  // target probabilities of all classes, for rows that count
      for (std::int32_t ti : t)
        for (int i = 0; i < 21; ++i)
          distribution.push_back(ti == 5 ? 0 : (i == ti ? 1 - smoothing : 0) + smoothing / 21);
      const Tensor q = g.constant(Array::of({6, 21}, distribution));
      const Tensor shift = stop_gradient(max(x.tensor, {-1}, true));
      const Tensor log_p = x.tensor - shift - log(sum(exp(x.tensor - shift), {-1}, true));
      const Tensor fused = cross_entropy(x.tensor, targets, o), plain = sum(q * log_p) * (-1. / 5);
      const Tensor z = gradients(fused, {x.tensor})[0], expected = gradients(plain, {x.tensor})[0];
      const Tensor zz = gradients(z, {x.tensor}, c.tensor)[0],
                   expected2 = gradients(expected, {x.tensor}, c.tensor)[0];
      const auto v =
          run_checked({fused, plain, z, expected, zz, expected2}, {x.feed(), c.feed(), {targets, t}});
      for (std::size_t i = 0; i < 6; i += 2) EXPECT_TRUE(close(doubles(v[i]), doubles(v[i + 1])));
    }
}

TEST(CrossEntropy, HasNoSecondTensorOfTheLogitsSize) {
  Graph g;
  const std::int64_t rows = 64, n = 4096;
  const Tensor x = g.input("x", {rows, n}), w = g.input("w", {rows, 1}), t = g.input("t", {rows}, i64);
  const Tensor z = gradients(cross_entropy(x * w, t), {w})[0];  // only x·w and its gradient have this size
  const MemoryReport m = compile(g, {z}).memory();
  EXPECT_LT(m.arena, 2 * rows * n * 4u);
}

TEST(CrossEntropy, IsZeroIfAllTargetsAreIgnored) {
  Graph g;
  const Given x = given(g, {3, 4});
  const Tensor t = g.input("t", {3}, i64), loss = cross_entropy(x.tensor, t);
  const Tensor z = gradients(loss, {x.tensor})[0];
  const auto v = run_checked({loss, z}, {x.feed(), {t, std::vector<std::int64_t>(3, -100)}});
  EXPECT_EQ(v[0].item<double>(), 0);
  EXPECT_EQ(doubles(v[1]), Vector(12, 0.0));
}

TEST(CrossEntropy, HandlesLargeAndInfiniteLogits) {
  Graph g;
  const Tensor x = g.input("x", {2, 3}), t = g.input("t", {2}, i64);
  const Tensor loss = cross_entropy(x, t, {.reduction = Reduction::none});
  const Tensor z = gradients(sum(loss), {x})[0];
  const auto v = run_checked({loss, z}, {{x, std::vector<float>{1e30f, -1e30f, 0, -INFINITY, 2, 2}},
                                         {t, std::vector<std::int64_t>{0, 1}}});
  EXPECT_EQ(v[0].at(0), 0);
  EXPECT_NEAR(v[0].at(1), std::log(2.0), 1e-6);
  EXPECT_TRUE(close(doubles(v[1]), {0, 0, 0, 0, -0.5, 0.5}, 1e-6));
}

TEST(CrossEntropy, AnInvalidTargetEndsTheRun) {
  for (std::int64_t bad : {4, -1}) {
    Graph g;
    const Given x = given(g, {3, 4});
    const Tensor t = g.input("t", {3}, i64), loss = cross_entropy(x.tensor, t);
    EXPECT_THROW(eval(loss, {x.feed(), {t, std::vector<std::int64_t>{0, bad, 1}}}), Error);
  }
}

TEST(CrossEntropy, RefusesTargetsOfAWrongShapeOrType) {
  Graph g;
  const Given x = given(g, {3, 4});
  EXPECT_THROW(cross_entropy(x.tensor, g.input("t", {4}, i64)), ShapeError);
  EXPECT_THROW(cross_entropy(x.tensor, g.input("t", {3}, f32)), DTypeError);
  EXPECT_THROW(cross_entropy(x.tensor, g.input("t", {3}, i64), {.label_smoothing = 2}), Error);
}

}  // namespace
