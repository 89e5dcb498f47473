// Tests that every comparison of the reference tests can fail, and that injected bugs in a backward pass are
// detected.
#include "tests/reference/reference_checks.h"

#include "tests/reference/flash_attention_2.h"
#include "tests/reference/standard_attention.h"

namespace tg::reference {
namespace {

const double kNaN = std::nan("");

TEST(Checks, CloseFailsOnDifferences) {
  EXPECT_TRUE(close(Vector{1, 2, -kInfinity}, {1, 2, -kInfinity}));
  EXPECT_TRUE(close(Vector{1, 1000}, {1, 1000 + 1e-10}));
  EXPECT_FALSE(close(Vector{1, 2}, {1, 2 + 1e-11}));
  EXPECT_FALSE(close(Vector{1e-11, 0}, {0, 0}));
  EXPECT_FALSE(close(Vector{1, 2}, {1, 2, 3}));
  EXPECT_FALSE(close(Vector{1, kNaN}, {1, 2}));
  EXPECT_FALSE(close(Vector{1, 2}, {1, kNaN}));
  EXPECT_FALSE(close(Vector{kNaN}, {kNaN}));
  EXPECT_FALSE(close(Vector{1, kInfinity}, {1, 2}));
  EXPECT_FALSE(close(Vector{1, 2}, {1, kInfinity}));
  EXPECT_FALSE(close(Vector{kInfinity}, {-kInfinity}));
  EXPECT_FALSE(close(Matrix(2, 3), Matrix(3, 2)));
  EXPECT_FALSE(close(Matrix(2, 2), Matrix(2, 2, 1e-11)));
  EXPECT_FALSE(all_finite({1, kNaN}));
  EXPECT_FALSE(all_finite({1, -kInfinity}));
}

TEST(Checks, CloseChecksEachGradient) {
  const Gradients z{Matrix(2, 3), Matrix(4, 3), Matrix(4, 2)};
  EXPECT_TRUE(close(z, z));
  for (Matrix Gradients::*part : {&Gradients::z_Q, &Gradients::z_K, &Gradients::z_V}) {
    Gradients other = z;
    (other.*part)(1, 1) = 1e-11;
    EXPECT_FALSE(close(other, z));
  }
}

TEST(Checks, PrintedNumbersAreCheckedToTheLastDigit) {
  EXPECT_TRUE(prints_as(Vector{0.22451524, -5.5715, 42}, "0.225 -5.57 42"));
  EXPECT_TRUE(rounds_to(0.0825, "0.08"));
  EXPECT_FALSE(rounds_to(0.22451524, "0.224"));
  EXPECT_FALSE(rounds_to(0.22451524, "-0.225"));
  EXPECT_FALSE(rounds_to(1e-9, "0"));  // without decimals, the number must be exact
  EXPECT_FALSE(rounds_to(kNaN, "0.0"));
  EXPECT_FALSE(prints_as(Vector{1, 2}, "1"));
  EXPECT_FALSE(prints_as(Vector{1}, "1 2"));
  EXPECT_FALSE(prints_as(Vector{1, 2}, "1 3"));
}

TEST(Checks, FourPointDifferencesAreExactForCubicsAndDetectErrors) {
  Vector x = {0.5, -2, 3};
  const auto f = [&] { return x[0] * x[0] * x[0] + 2 * x[1] * x[2]; };
  EXPECT_TRUE(close(four_point_gradient(x, f), {0.75, 6, -4}, kDifferenceTolerance));
  EXPECT_FALSE(close(four_point_gradient(x, f), {0.75, 6, 4}, kDifferenceTolerance));
  EXPECT_FALSE(close(four_point_gradient(x, f), {0.75 + 1e-7, 6, -4}, kDifferenceTolerance));
  EXPECT_EQ(x, (Vector{0.5, -2, 3}));
}

// Finite differences must detect each of these typical bugs in a backward pass.
TEST(Checks, InjectedBugsInABackwardAreDetected) {
  Matrix Q = random_matrix(4, 3, 1), K = random_matrix(5, 3, 2), V = random_matrix(5, 2, 3);
  const Matrix z_O = random_matrix(4, 2, 4);
  const auto loss = [&] { return weighted_sum(flash2_forward(Q, K, V, 2, 2).O.data, z_O.data); };
  const Gradients expected{{4, 3, four_point_gradient(Q.data, loss)},
                           {5, 3, four_point_gradient(K.data, loss)},
                           {5, 2, four_point_gradient(V.data, loss)}};
  const auto gradients = [&](const Flash2Forward& f, const Matrix& z) {
    Gradients g = zero_gradients(Q, K, V);
    flash2_backward(Q, K, V, f, z, 2, 2, g);
    return g;
  };
  const Flash2Forward f = flash2_forward(Q, K, V, 2, 2);
  ASSERT_TRUE(close(gradients(f, z_O), expected, kDifferenceTolerance));

  EXPECT_FALSE(close(gradients(f, scaled(z_O, -1)), expected, kDifferenceTolerance)) << "sign";
  EXPECT_FALSE(close(gradients(f, scaled(z_O, 1 + 1e-6)), expected, kDifferenceTolerance)) << "scale";
  EXPECT_FALSE(close(gradients(f, Matrix(4, 2)), expected, kDifferenceTolerance)) << "zero";
  EXPECT_FALSE(close(gradients({Matrix(4, 2), f.xi}, z_O), expected, kDifferenceTolerance)) << "u dropped";
  EXPECT_FALSE(close(gradients({f.O, Vector(4, 0.0)}, z_O), expected, kDifferenceTolerance)) << "xi dropped";
  Matrix swapped = z_O;
  std::swap(swapped.data[0], swapped.data[3]);
  EXPECT_FALSE(close(gradients(f, swapped), expected, kDifferenceTolerance)) << "transposed";
}

}  // namespace
}  // namespace tg::reference
