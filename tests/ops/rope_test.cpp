// Compares rope with a rotation in plain code, in both pairings. The gradient must be the inverse rotation.
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

// Rotates rows of d elements at the given positions.
Vector plain_rope(const Vector& x, std::int64_t d, const Vector& positions, std::int64_t dims, double theta,
                  bool interleaved) {
  Vector y = x;
  for (std::size_t r = 0; r < positions.size(); ++r)
    for (std::int64_t i = 0; i < dims / 2; ++i) {
      const double angle = positions[r] * std::pow(theta, -2.0 * double(i) / double(dims));
      const std::size_t row = r * static_cast<std::size_t>(d);
      const std::size_t a = row + (interleaved ? 2 * i : i),
                        b = row + (interleaved ? 2 * i + 1 : i + dims / 2);
      y[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
      y[b] = x[a] * std::sin(angle) + x[b] * std::cos(angle);
    }
  return y;
}

// Returns positions start, start + 1, … for each row of [..., L].
Vector counted(const Shape& shape, std::int64_t start) {
  Vector p;
  const std::int64_t length = shape[shape.size() - 2];
  for (std::int64_t r = 0; r < numel(shape) / shape.back(); ++r) p.push_back(double(start + r % length));
  return p;
}

TEST(Rope, AgreesWithTheRotationOnEveryViewAndType) {
  for (const Shape& shape : {Shape{2, 3, 7, 8}, Shape{5, 64}, Shape{1, 2, 1, 6}, Shape{3, 40, 34}})
    for (View view : all_views)
      for (DType dtype : float_dtypes)
        for (bool interleaved : {false, true}) {
          SCOPED_TRACE(shape.text() + " view " + std::to_string(int(view)) + " " +
                       std::string(name_of(dtype)));
          Graph g;
          const Given x = given(g, shape, dtype, view);
          const std::int64_t d = shape.back();
          const auto y = run_checked(
              {rope(x.tensor, {}, {.interleaved = interleaved}),
               rope(x.tensor, {}, {.theta = 50, .dims = d - 2, .interleaved = interleaved, .start = 1000})},
              {x.feed()});
          const double tolerance = (dtype == f64 ? 1e-13 : 3e-7) + 2 * rounding(dtype);
          EXPECT_TRUE(close(doubles(y[0]), plain_rope(x.values, d, counted(shape, 0), d, 10000, interleaved),
                            tolerance));
          EXPECT_TRUE(close(doubles(y[1]),
                            plain_rope(x.values, d, counted(shape, 1000), d - 2, 50, interleaved),
                            tolerance));
        }
}

TEST(Rope, AcceptsPositionsThatBroadcast) {
  Graph g;
  const Given x = given(g, {2, 3, 4, 8});
  const Tensor shared = g.input("shared", {4}, i32), each = g.input("each", {2, 1, 4}, i64);
  const std::vector<std::int32_t> s{5, 0, 9, 100000};
  const std::vector<std::int64_t> e{0, 1, 2, 3, 7, 8, 9, 10};
  const auto y =
      run_checked({rope(x.tensor, shared), rope(x.tensor, each)}, {x.feed(), {shared, s}, {each, e}});
  Vector at_shared, at_each;
  for (int b = 0; b < 2; ++b)
    for (int h = 0; h < 3; ++h)
      for (int l = 0; l < 4; ++l) at_shared.push_back(s[l]), at_each.push_back(double(e[b * 4 + l]));
  EXPECT_TRUE(close(doubles(y[0]), plain_rope(x.values, 8, at_shared, 8, 10000, false), 1e-10));
  EXPECT_TRUE(close(doubles(y[1]), plain_rope(x.values, 8, at_each, 8, 10000, false)));
}

TEST(Rope, KeepsItsDigitsAtLargePositionsInF32) {  // angles are reduced in f64
  Graph g;
  const Given x = given(g, {3, 64}, f32);
  const auto y = run_checked({rope(x.tensor, {}, {.start = 1000000})}, {x.feed()});
  EXPECT_TRUE(
      close(doubles(y[0]), plain_rope(x.values, 64, counted({3, 64}, 1000000), 64, 10000, false), 1e-6));
}

TEST(Rope, KeepsTheMemoryOrderOfItsInput) {  // heads stay where the projection wrote them
  Graph g;
  const Tensor x = g.input("x", {2, 5, 3, 8});
  const Tensor y = rope(transpose(x, 1, 2));
  EXPECT_EQ(y.layout(), transpose(x.layout(), 1, 2));
}

TEST(Rope, ProductsOfRowsDependOnTheirDistanceOnly) {
  Graph g;
  const Given q = given(g, {1, 16}), k = given(g, {1, 16}, f64, View::contiguous, 2);
  const auto product = [&](std::int64_t i, std::int64_t j) {
    return sum(rope(q.tensor, {}, {.start = i}) * rope(k.tensor, {}, {.start = j}));
  };
  const auto y = run_checked({product(3, 1), product(103, 101)}, {q.feed(), k.feed()});
  EXPECT_NEAR(y[0].item<double>(), y[1].item<double>(), 1e-12);
}

TEST(Rope, FirstAndSecondDerivativesMatchThePlainOps) {
  for (bool interleaved : {false, true})
    for (View view : {View::contiguous, View::transposed}) {
      Graph g;
      const Given x = given(g, {2, 5, 10}, f64, view), c = given(g, {2, 5, 10}, f64, View::contiguous, 2);
      const Tensor p = g.input("p", {5}, i64);
      const Tensor fused = rope(x.tensor, p, {.dims = 8, .interleaved = interleaved});
      const Tensor plain =
          rope_op.decompose(std::vector<Tensor>{x.tensor, expand(p, {2, 5})}, g.node_of(fused.id()).attrs)[0];
      std::vector<Tensor> all;
      for (const Tensor& y : {fused, plain}) {
        const Tensor z = gradients(sum(y * y * y), {x.tensor})[0];
        all.insert(all.end(), {y, z, gradients(z, {x.tensor}, c.tensor)[0]});
      }
      const auto v = run_checked(all, {x.feed(), c.feed(), {p, std::vector<std::int64_t>{0, 3, 1, 8, 2}}});
      for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(close(doubles(v[i]), doubles(v[i + 3])));
    }
}

TEST(Rope, AcceptsCustomFrequencies) {
  Graph g;
  const Given x = given(g, {3, 4});
  const auto y = run_checked(
      {rope(x.tensor, {}, {.frequencies = rope_frequencies(4, 500)}), rope(x.tensor, {}, {.theta = 500})},
      {x.feed()});
  EXPECT_TRUE(y[0].same_bits(y[1]));
}

TEST(Rope, RefusesMismatchedOperands) {
  Graph g;
  const Given x = given(g, {3, 5});
  EXPECT_THROW(rope(x.tensor), ShapeError);
  EXPECT_THROW(rope(x.tensor, {}, {.dims = 6}), ShapeError);
  EXPECT_THROW(rope(x.tensor, g.input("p", {2}, i64), {.dims = 4}), ShapeError);
  EXPECT_THROW(rope(x.tensor, g.input("q", {3}, f32), {.dims = 4}), DTypeError);
}

}  // namespace
