// Checks the worked 4×4 example of [Attention To Tiling], number by number, with the printed precision.
// Twelve printed numbers are wrong in the last digit, because the paper computed with rounded numbers. Here,
// comments contain these printed numbers, and the code has the correct numbers with more digits. The end of
// the file has their closed forms. Gradients have our letters (docs/notation.md): the paper's dX is z_X, z_A
// is the same, and D is u.
#include "tests/reference/reference_checks.h"

#include "tests/reference/memory_reads.h"
#include "tests/reference/standard_attention.h"
#include "tests/reference/tiling_trace.h"

namespace tg::reference {
namespace {

const Matrix kQ(4, 4, {1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0});
const Matrix kK(4, 4, {1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 1});
const Matrix kV(4, 4, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
const Matrix kz_O(4, 4, {1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0});

// In the example, √d_k = 1, so Q is multiplied by √4, which is exact.
StandardForward forward() {
  return standard_forward(scaled(kQ, 2), kK, kV);
}

Gradients backward() {
  Gradients z = zero_gradients(kQ, kK, kV);
  standard_backward(scaled(kQ, 2), kK, kV, forward().P, kz_O, z);
  z.z_Q = scaled(z.z_Q, 2);
  return z;
}

Vector row(const Matrix& A, Index i) {
  return Vector(A.data.begin() + i * A.cols, A.data.begin() + (i + 1) * A.cols);
}

// Computes W − η·z_W.
Matrix updated(const Matrix& W, const Matrix& z_W) {
  Matrix updated_W = W;
  add_to(updated_W, scaled(z_W, -0.1));
  return updated_W;
}

TEST(WorkedExample, ScoresProbabilitiesAndOutput) {
  const StandardForward f = forward();
  EXPECT_TRUE(prints_as(f.A,
                        "1 0 2 0 "
                        "0 1 0 2 "
                        "1 0 1 0 "
                        "0 1 0 1"));
  Vector exponentials;
  for (double s : row(f.A, 0)) exponentials.push_back(std::exp(s));
  EXPECT_TRUE(prints_as(exponentials, "2.718 1 7.389 1"));
  EXPECT_TRUE(rounds_to(weighted_sum(exponentials, Vector(4, 1.0)), "12.107"));
  EXPECT_TRUE(prints_as(f.P,
                        "0.22451524 0.083 0.610 0.083 "  // the paper prints 0.224 for 0.2245
                        "0.083 0.22451524 0.083 0.610 "  // the same
                        "0.366 0.134 0.366 0.134 "
                        "0.134 0.366 0.134 0.366"));
  EXPECT_TRUE(prints_as(f.O,
                        "7.20 8.20 9.20 10.20 "
                        "9.88 10.88 11.88 12.88 "
                        "6.08 7.08 8.08 9.08 "
                        "7.92 8.92 9.92 10.92"));
}

TEST(WorkedExample, Gradients) {
  const StandardForward f = forward();
  const Gradients z = backward();
  EXPECT_TRUE(prints_as(z.z_V,
                        "0.590 0.590 0.590 0.590 "
                        "0.217 0.217 0.217 0.217 "
                        "0.976 0.976 0.976 0.976 "
                        "0.217 0.217 0.217 0.217"));
  const Matrix z_P = matmul(kz_O, transpose(kV));
  EXPECT_TRUE(prints_as(z_P,
                        "10 26 42 58 "
                        "0 0 0 0 "
                        "10 26 42 58 "
                        "0 0 0 0"));
  const Vector u = row_sums_of_P_z_P(f.P, kV, kz_O);
  EXPECT_TRUE(prints_as(u, "34.81551246 0 30.30 0"));  // the paper prints 34.83 for u₀
  EXPECT_TRUE(close(row_sums_of_O_z_O(f.O, kz_O), u));
  Matrix z_A(4, 4);
  for (Index i = 0; i < 4; ++i)
    for (Index j = 0; j < 4; ++j) z_A(i, j) = f.P(i, j) * (z_P(i, j) - u[i]);
  EXPECT_TRUE(prints_as(z_A,
                        "-5.57 -0.73 4.38 1.91 "
                        "0 0 0 0 "
                        "-7.42 -0.58 4.28 3.72 "
                        "0 0 0 0"));
  EXPECT_TRUE(prints_as(z.z_Q,
                        "-1.19 1.18679888 4.38 1.91 "  // the paper prints 1.18
                        "0 0 0 0 "
                        "-3.14579093 3.14579093 4.28 3.72 "  // the paper prints -3.14 and 3.14
                        "0 0 0 0"));
  EXPECT_TRUE(prints_as(z.z_K,
                        "-12.99 0 -5.57 0 "
                        "-1.31 0 -0.73 0 "
                        "8.66 0 4.38 0 "
                        "5.64 0 1.91 0"));
  EXPECT_TRUE(close(tiling_backward(kQ, kK, kV, tiling_forward(kQ, kK, kV, 2), kz_O, 2), z));
}

// X = I, so the weights equal Q, K and V. η = 0.1.
TEST(WorkedExample, WeightUpdates) {
  const Gradients z = backward();
  EXPECT_TRUE(prints_as(updated(kV, z.z_V),
                        "0.94 1.94 2.94 3.94 "
                        "4.98 5.98 6.98 7.98 "
                        "8.90 9.90 10.90 11.90 "
                        "12.98 13.98 14.98 15.98"));
  EXPECT_TRUE(rounds_to(kV(2, 0) - updated(kV, z.z_V)(2, 0), "0.098"));
  EXPECT_TRUE(prints_as(row(updated(kQ, z.z_Q), 0), "1.12 -0.12 0.56 -0.19"));
  EXPECT_TRUE(prints_as(row(updated(kK, z.z_K), 0), "2.30 0 0.56 0"));
}

TEST(WorkedExample, TileTraceOfTheFirstQueryBlock) {
  const TilingForward f = tiling_forward(kQ, kK, kV, 2);
  ASSERT_EQ(f.steps.size(), 4u);

  const TileStep& first = f.steps[0];  // tile (0,0)
  EXPECT_EQ(first.query_begin, 0);
  EXPECT_EQ(first.key_begin, 0);
  EXPECT_TRUE(prints_as(first.S, "1 0 0 1"));
  EXPECT_TRUE(prints_as(first.m_tile, "1 1"));
  EXPECT_TRUE(prints_as(first.m, "1 1"));
  EXPECT_TRUE(prints_as(first.correction, "0 0"));
  EXPECT_TRUE(prints_as(first.P, "1 0.368 0.368 1"));
  EXPECT_TRUE(prints_as(first.l, "1.368 1.368"));
  EXPECT_TRUE(prints_as(first.O,
                        "2.84 4.21 5.57515609 6.94 "  // the paper prints 5.57
                        "5.37 6.74 8.10 9.47"));

  const TileStep& second = f.steps[1];  // tile (0,1)
  EXPECT_EQ(second.query_begin, 0);
  EXPECT_EQ(second.key_begin, 2);
  EXPECT_TRUE(prints_as(second.S, "2 0 0 2"));
  EXPECT_TRUE(prints_as(second.m, "2 2"));
  EXPECT_TRUE(prints_as(second.correction, "0.368 0.368"));
  EXPECT_TRUE(prints_as(second.P, "1 0.135 0.135 1"));
  EXPECT_TRUE(prints_as(second.l, "1.63855001 1.63855001"));  // the paper prints 1.638
  EXPECT_TRUE(prints_as(second.O,
                        "11.80391454 13.44 15.08 16.71956456 "    // the paper prints 11.81 and 16.71
                        "16.19275004 17.83 19.47 21.10840006"));  // the paper prints 16.20 and 21.10
  EXPECT_TRUE(prints_as(row(f.O, 0), "7.20 8.20 9.20 10.20"));
  EXPECT_TRUE(prints_as(row(f.O, 1), "9.88 10.88 11.88 12.88"));
}

// The paper's trace ends here. The second query block is compared with closed forms, where e⁻¹ = exp(−1).
TEST(WorkedExample, TileTraceOfTheSecondQueryBlock) {
  const TilingForward f = tiling_forward(kQ, kK, kV, 2);
  const double e1 = std::exp(-1.0);
  const TileStep &third = f.steps[2], &fourth = f.steps[3];
  EXPECT_EQ(third.query_begin, 2);
  EXPECT_EQ(third.key_begin, 0);
  EXPECT_TRUE(prints_as(third.S, "1 0 0 1"));
  EXPECT_TRUE(prints_as(third.m, "1 1"));
  EXPECT_TRUE(close(third.l, {1 + e1, 1 + e1}));
  EXPECT_TRUE(close(third.O, f.steps[0].O));  // the same scores and values as tile (0,0)
  EXPECT_EQ(fourth.key_begin, 2);
  EXPECT_TRUE(prints_as(fourth.S, "1 0 0 1"));
  EXPECT_TRUE(prints_as(fourth.correction, "1 1"));  // the maximum does not change
  EXPECT_TRUE(close(fourth.l, {2 + 2 * e1, 2 + 2 * e1}));
  EXPECT_TRUE(close(row(fourth.O, 0), {10 + 18 * e1, 12 + 20 * e1, 14 + 22 * e1, 16 + 24 * e1}));
  EXPECT_TRUE(close(row(fourth.O, 1), {18 + 10 * e1, 20 + 12 * e1, 22 + 14 * e1, 24 + 16 * e1}));
  EXPECT_TRUE(close(f.O, forward().O));
}

// The errors of these printed numbers are larger than rounding errors. A row has the printed number, the
// correct number, and the exact value.
TEST(WorkedExample, MisprintsAreCorrectedByClosedForms) {
  const StandardForward f = forward();
  const Gradients z = backward();
  const TilingForward tiles = tiling_forward(kQ, kK, kV, 2);
  const double e = std::exp(1.0), e1 = std::exp(-1.0), e2 = std::exp(-2.0);
  const double sum = 2 + e + e * e;                          // sum of row 0's exponentials
  const double u_0 = (10 * e + 26 + 42 * e * e + 58) / sum;  // Σ P ⊛ z_P
  const double z_Q_01 = (26 - u_0 + 58 - u_0) / sum;         // z_A₀₁ + z_A₀₃
  const double u_2 = (52 * e + 84) / (2 * e + 2);
  const double z_Q_21 = (26 - u_2 + 58 - u_2) / (2 * e + 2);
  struct Misprint {
    const char* what;
    double got, exact;
    const char *printed, *right;
  };
  const Misprint misprints[] = {
      {"P[0,0]", f.P(0, 0), e / sum, "0.224", "0.225"},
      {"P[1,1]", f.P(1, 1), e / sum, "0.224", "0.225"},
      {"u[0]", dot(f.O, 0, kz_O, 0), u_0, "34.83", "34.82"},
      {"z_Q[0,1]", z.z_Q(0, 1), z_Q_01, "1.18", "1.19"},
      {"z_Q[2,0]", z.z_Q(2, 0), -z_Q_21, "-3.14", "-3.15"},
      {"z_Q[2,1]", z.z_Q(2, 1), z_Q_21, "3.14", "3.15"},
      {"O of tile (0,0), [0,2]", tiles.steps[0].O(0, 2), 3 + 7 * e1, "5.57", "5.58"},
      {"l of tile (0,1)", tiles.steps[1].l[0], (1 + e1) * e1 + 1 + e2, "1.638", "1.639"},
      {"O of tile (0,1), [0,0]", tiles.steps[1].O(0, 0), e1 + 5 * e2 + 9 + 13 * e2, "11.81", "11.80"},
      {"O of tile (0,1), [0,3]", tiles.steps[1].O(0, 3), 4 * e1 + 8 * e2 + 12 + 16 * e2, "16.71", "16.72"},
      {"O of tile (0,1), [1,0]", tiles.steps[1].O(1, 0), e2 + 5 * e1 + 9 * e2 + 13, "16.20", "16.19"},
      {"O of tile (0,1), [1,3]", tiles.steps[1].O(1, 3), 4 * e2 + 8 * e1 + 12 * e2 + 16, "21.10", "21.11"},
  };
  for (const Misprint& m : misprints) {
    EXPECT_TRUE(close(Vector{m.got}, {m.exact}, 1e-14)) << m.what;
    EXPECT_TRUE(rounds_to(m.exact, m.right)) << m.what;
    EXPECT_FALSE(rounds_to(m.exact, m.printed)) << m.what;
  }
}

// [Attention To Tiling Part II]. The first two rows are in units of 2²⁰ bytes, the others in powers of ten.
TEST(WorkedExample, MemoryTable) {
  struct Row {
    Index N;
    double count_unit, count, half_count, byte_unit, bytes, half_bytes;
  };
  const Row rows[] = {{512, 1e3, 262, 0.5, 0x1p20, 0.5, 0},
                      {2048, 1e6, 4.2, 0.05, 0x1p20, 8, 0},
                      {8192, 1e6, 67, 0.5, 1e6, 134, 0.5},
                      {32768, 1e9, 1.07, 0.005, 1e9, 2.1, 0.05},
                      {131072, 1e9, 17.2, 0.05, 1e9, 34, 0.5}};
  for (const Row& r : rows) {
    EXPECT_NEAR(r.N * r.N / r.count_unit, r.count, r.half_count) << r.N;
    EXPECT_NEAR(score_matrix_bytes(r.N) / r.byte_unit, r.bytes, r.half_bytes) << r.N;
  }
}

}  // namespace
}  // namespace tg::reference
