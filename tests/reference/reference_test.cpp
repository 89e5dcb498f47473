// Tests that the algorithms of the papers agree with each other. Their backward passes must agree with finite
// differences of their forward passes.
#include "tests/reference/reference_checks.h"

#include "tests/reference/flash_attention_1.h"
#include "tests/reference/flash_attention_2.h"
#include "tests/reference/incremental_attention.h"
#include "tests/reference/masked_attention.h"
#include "tests/reference/matmul.h"
#include "tests/reference/memory_efficient_attention.h"
#include "tests/reference/memory_reads.h"
#include "tests/reference/multi_head_attention.h"
#include "tests/reference/relu_product.h"
#include "tests/reference/self_attention.h"
#include "tests/reference/softmax.h"
#include "tests/reference/standard_attention.h"
#include "tests/reference/tiling_trace.h"

namespace tg::reference {
namespace {

struct Problem {
  Matrix Q, K, V, z_O;  // [L, d], [T, d], [T, D], [L, D]

  double root_d() const { return std::sqrt(static_cast<double>(Q.cols)); }
  // [Ye, Online Softmax], [Yeeboxie, FlashAttentionNote], [Attention To Tiling] and [Stratos, FlashAttention
  // eq. 2] omit the scale, so they get Q/√d.
  Matrix scaled_Q() const { return scaled(Q, 1 / root_d()); }
};

Problem random_problem(Index L, Index T, Index d, Index D, std::uint64_t seed) {
  return {scaled(random_matrix(L, d, seed), 3), random_matrix(T, d, seed + 1), random_matrix(T, D, seed + 2),
          random_matrix(L, D, seed + 3)};
}

// Even rows have the given scores, including the scale. Odd rows have their negatives. d = 4, so Q/√d is
// exact.
Problem problem_with_scores(const Vector& scores, std::uint64_t seed) {
  const Index L = 6, T = Index(scores.size());
  Problem p = random_problem(L, T, 4, 3, seed);
  std::fill(p.Q.data.begin(), p.Q.data.end(), 0.0);
  for (Index i = 0; i < L; ++i) p.Q(i, 0) = i % 2 == 0 ? 2 : -2;
  for (Index t = 0; t < T; ++t) p.K(t, 0) = scores[t];
  return p;
}

// Returns scores between −size and size that rise, fall, alternate or stay constant. If scores are equal or
// close, several keys share the probability.
std::vector<Problem> extreme_problems(double size) {
  Vector rising, alternating, level(9, size), stairs;
  for (int t = 0; t < 9; ++t) {
    rising.push_back(size * (t - 4) / 4);
    alternating.push_back(t % 2 == 0 ? size : -size);
    stairs.push_back(size - 8 + t);
  }
  return {problem_with_scores(rising, 1), problem_with_scores(alternating, 2), problem_with_scores(level, 3),
          problem_with_scores(stairs, 4)};
}

struct Shape {
  Index L, T, d, D;
};
constexpr Shape kShapes[] = {{1, 1, 1, 1}, {1, 7, 3, 2},  {5, 1, 2, 4},  {4, 4, 4, 4},     {3, 8, 4, 1},
                             {8, 3, 1, 5}, {7, 11, 5, 3}, {13, 9, 4, 6}, {16, 16, 16, 16}, {6, 17, 8, 9}};
constexpr Index kTiles[][2] = {{1, 1}, {1, 4}, {2, 2}, {3, 2}, {2, 3}, {5, 7}, {16, 1}, {64, 64}};  // Γ, Λ

void expect_stable_forwards_agree(const Problem& p) {
  const StandardForward expected = standard_forward(p.Q, p.K, p.V);
  ASSERT_TRUE(all_finite(expected.O.data));
  EXPECT_TRUE(close(multi_pass_attention(p.scaled_Q(), p.K, p.V), expected.O));
  EXPECT_TRUE(close(one_pass_attention(p.scaled_Q(), p.K, p.V), expected.O));
  for (const auto& [batch, chunk] : kTiles) {
    SCOPED_TRACE(testing::Message() << "tile " << batch << " x " << chunk);
    EXPECT_TRUE(close(tiled_one_pass_attention(p.scaled_Q(), p.K, p.V, chunk), expected.O));
    EXPECT_TRUE(close(tiling_forward(p.scaled_Q(), p.K, p.V, chunk).O, expected.O));
    const Flash1Forward one = flash1_forward(p.Q, p.K, p.V, batch, chunk);
    EXPECT_TRUE(close(one.O, expected.O));
    EXPECT_EQ(one.c, expected.c);
    EXPECT_TRUE(close(one.pi, expected.pi));
    const Flash2Forward two = flash2_forward(p.Q, p.K, p.V, batch, chunk);
    EXPECT_TRUE(close(two.O, expected.O));
    for (Index i = 0; i < p.Q.rows; ++i)
      EXPECT_NEAR(two.xi[i], expected.c[i] + std::log(expected.pi[i]), 1e-12);
  }
  const AttentionShape n{1, 1, 1, p.Q.rows, p.K.rows, p.Q.cols, p.V.cols};
  EXPECT_TRUE(close(standard_attention_reference(n, p.Q.data, p.K.data, p.V.data).o, expected.O.data));
}

void expect_unshifted_forwards_agree(const Problem& p) {
  const Matrix expected = standard_forward(p.Q, p.K, p.V).O;
  EXPECT_TRUE(close(memory_efficient_forward(p.scaled_Q(), p.K, p.V).O, expected));
  for (const auto& tile : kTiles)
    EXPECT_TRUE(close(incremental_attention(p.scaled_Q(), p.K, p.V, tile[1]), expected))
        << "chunk " << tile[1];
}

Gradients standard_gradients(const Problem& p) {
  Gradients z = zero_gradients(p.Q, p.K, p.V);
  standard_backward(p.Q, p.K, p.V, standard_forward(p.Q, p.K, p.V).P, p.z_O, z);
  return z;
}
Gradients flash1_gradients(const Problem& p, Index batch, Index chunk) {
  Gradients z = zero_gradients(p.Q, p.K, p.V);
  const Flash1Forward f = flash1_forward(p.Q, p.K, p.V, batch, chunk);
  flash1_backward(p.Q, p.K, p.V, f, p.z_O, batch, chunk, z);
  return z;
}
Gradients flash2_gradients(const Problem& p, Index batch, Index chunk) {
  Gradients z = zero_gradients(p.Q, p.K, p.V);
  const Flash2Forward f = flash2_forward(p.Q, p.K, p.V, batch, chunk);
  flash2_backward(p.Q, p.K, p.V, f, p.z_O, batch, chunk, z);
  return z;
}
// In the forms without the scale, z_Q is the gradient of Q/√d.
Gradients rescaled(Gradients z, const Problem& p) {
  z.z_Q = scaled(z.z_Q, 1 / p.root_d());
  return z;
}
Gradients memory_efficient_gradients(const Problem& p) {
  const Matrix Q = p.scaled_Q();
  return rescaled(memory_efficient_backward(Q, p.K, p.V, memory_efficient_forward(Q, p.K, p.V), p.z_O), p);
}
Gradients tiling_gradients(const Problem& p, Index block) {
  const Matrix Q = p.scaled_Q();
  return rescaled(tiling_backward(Q, p.K, p.V, tiling_forward(Q, p.K, p.V, block), p.z_O, block), p);
}

void expect_backwards_agree(const Problem& p, bool unshifted_too) {
  const Gradients expected = standard_gradients(p);
  ASSERT_TRUE(all_finite(expected.z_Q.data) && all_finite(expected.z_K.data) &&
              all_finite(expected.z_V.data));
  if (unshifted_too) {
    EXPECT_TRUE(close(memory_efficient_gradients(p), expected));
  }
  for (const auto& [batch, chunk] : kTiles) {
    SCOPED_TRACE(testing::Message() << "tile " << batch << " x " << chunk);
    EXPECT_TRUE(close(flash1_gradients(p, batch, chunk), expected));
    EXPECT_TRUE(close(flash2_gradients(p, batch, chunk), expected));
    EXPECT_TRUE(close(tiling_gradients(p, chunk), expected));
  }
  const AttentionShape n{1, 1, 1, p.Q.rows, p.K.rows, p.Q.cols, p.V.cols};
  const auto z = standard_attention_reference_backward(n, p.Q.data, p.K.data, p.V.data, p.z_O.data, {});
  EXPECT_TRUE(close(z.z_q, expected.z_Q.data));
  EXPECT_TRUE(close(z.z_k, expected.z_K.data));
  EXPECT_TRUE(close(z.z_v, expected.z_V.data));
}

TEST(Softmax, OnlineEqualsThreePass) {
  for (std::uint64_t seed = 0; seed < 8; ++seed)
    for (double size : {1.0, 30.0, 700.0, 1e5}) {
      Vector x = random_vector(1 + Index(seed) * 5, seed);
      for (double& x_i : x) x_i *= size;
      EXPECT_TRUE(close(online_softmax(x), three_pass_softmax(x)));
      EXPECT_NEAR(weighted_sum(online_softmax(x), Vector(x.size(), 1.0)), 1, 1e-14);
    }
  EXPECT_EQ(online_softmax({700, -700}), three_pass_softmax({700, -700}));
  EXPECT_EQ(online_softmax({-700, 700}), (Vector{std::exp(-1400.0), 1}));
  EXPECT_TRUE(close(online_softmax({-700, -700, -700, -700}), {0.25, 0.25, 0.25, 0.25}));
}

TEST(Softmax, BackwardIsTheDerivative) {
  Vector x = random_vector(9, 1), z_x(9, 0.0);
  const Vector z_p = random_vector(9, 2);
  softmax_backward(three_pass_softmax(x), z_p, z_x);
  EXPECT_TRUE(close(z_x, four_point_gradient(x, [&] { return weighted_sum(online_softmax(x), z_p); }),
                    kDifferenceTolerance));
}

TEST(Attention, EveryForwardAgrees) {
  for (const auto& [L, T, d, D] : kShapes)
    for (std::uint64_t seed : {10, 20, 30}) {
      SCOPED_TRACE(testing::Message()
                   << "L T d D " << L << " " << T << " " << d << " " << D << " seed " << seed);
      const Problem p = random_problem(L, T, d, D, seed);
      expect_stable_forwards_agree(p);
      expect_unshifted_forwards_agree(p);
    }
}

TEST(Attention, EveryBackwardAgrees) {
  for (const auto& [L, T, d, D] : kShapes)
    for (std::uint64_t seed : {10, 20, 30}) {
      SCOPED_TRACE(testing::Message()
                   << "L T d D " << L << " " << T << " " << d << " " << D << " seed " << seed);
      expect_backwards_agree(random_problem(L, T, d, D, seed), true);
    }
}

// exp(700) is still a finite double, so the forms without a maximum must also be correct.
TEST(Attention, EveryFormAgreesOnLogitsOf700) {
  for (const Problem& p : extreme_problems(700)) {
    expect_stable_forwards_agree(p);
    expect_unshifted_forwards_agree(p);
    expect_backwards_agree(p, true);
  }
}

TEST(Attention, StableFormsHoldIfTheOthersOverflow) {
  for (const Problem& p : extreme_problems(2000)) {
    expect_stable_forwards_agree(p);
    expect_backwards_agree(p, false);
    EXPECT_FALSE(all_finite(memory_efficient_forward(p.scaled_Q(), p.K, p.V).O.data));
    EXPECT_FALSE(all_finite(incremental_attention(p.scaled_Q(), p.K, p.V, 2).data));
  }
}

// Compares a backward pass with finite differences of its forward pass.
void expect_gradients_of(Problem p, const Gradients& z,
                         const std::function<Matrix(const Problem&)>& forward) {
  const auto loss = [&] { return weighted_sum(forward(p).data, p.z_O.data); };
  EXPECT_TRUE(close(z.z_Q.data, four_point_gradient(p.Q.data, loss), kDifferenceTolerance));
  EXPECT_TRUE(close(z.z_K.data, four_point_gradient(p.K.data, loss), kDifferenceTolerance));
  EXPECT_TRUE(close(z.z_V.data, four_point_gradient(p.V.data, loss), kDifferenceTolerance));
}

TEST(Attention, EveryBackwardIsTheDerivativeOfItsForward) {
  for (const auto& [L, T, d, D] :
       {Shape{1, 4, 3, 2}, Shape{4, 4, 4, 4}, Shape{5, 7, 2, 3}, Shape{7, 5, 4, 1}}) {
    SCOPED_TRACE(testing::Message() << "L T d D " << L << " " << T << " " << d << " " << D);
    const Problem p = random_problem(L, T, d, D, 5);
    expect_gradients_of(p, standard_gradients(p),
                        [](const Problem& x) { return standard_forward(x.Q, x.K, x.V).O; });
    expect_gradients_of(p, flash1_gradients(p, 2, 3),
                        [](const Problem& x) { return flash1_forward(x.Q, x.K, x.V, 2, 3).O; });
    expect_gradients_of(p, flash2_gradients(p, 3, 2),
                        [](const Problem& x) { return flash2_forward(x.Q, x.K, x.V, 3, 2).O; });
    expect_gradients_of(p, memory_efficient_gradients(p),
                        [](const Problem& x) { return memory_efficient_forward(x.scaled_Q(), x.K, x.V).O; });
    expect_gradients_of(p, tiling_gradients(p, 2),
                        [](const Problem& x) { return tiling_forward(x.scaled_Q(), x.K, x.V, 2).O; });
  }
}

// [Stratos, Efficient Attention §1.2]: a backward pass adds to the gradient slots.
TEST(Attention, BackwardAddsToTheGradientSlots) {
  const Problem p = random_problem(5, 7, 3, 4, 6);
  const Gradients before{random_matrix(5, 3, 1), random_matrix(7, 3, 2), random_matrix(7, 4, 3)};
  Gradients expected = before;
  const Gradients z = standard_gradients(p);
  for (int uses = 0; uses < 2; ++uses)
    add_to(expected.z_Q, z.z_Q), add_to(expected.z_K, z.z_K), add_to(expected.z_V, z.z_V);
  const StandardForward standard = standard_forward(p.Q, p.K, p.V);
  const Flash1Forward one = flash1_forward(p.Q, p.K, p.V, 2, 3);
  const Flash2Forward two = flash2_forward(p.Q, p.K, p.V, 2, 3);
  Gradients by_standard = before, by_one = before, by_two = before;
  for (int uses = 0; uses < 2; ++uses) {
    standard_backward(p.Q, p.K, p.V, standard.P, p.z_O, by_standard);
    flash1_backward(p.Q, p.K, p.V, one, p.z_O, 2, 3, by_one);
    flash2_backward(p.Q, p.K, p.V, two, p.z_O, 2, 3, by_two);
  }
  EXPECT_TRUE(close(by_standard, expected));
  EXPECT_TRUE(close(by_one, expected));
  EXPECT_TRUE(close(by_two, expected));
}

// [Stratos, FlashAttention Lemma 2.1]: u = (P ⊛ z_P).sum(2) = (O ⊛ z_O).sum(2).
TEST(Attention, Lemma21HoldsForEveryShape) {
  for (const auto& [L, T, d, D] : kShapes)
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const Problem p = random_problem(L, T, d, D, seed);
      const StandardForward f = standard_forward(p.Q, p.K, p.V);
      EXPECT_TRUE(close(row_sums_of_O_z_O(f.O, p.z_O), row_sums_of_P_z_P(f.P, p.V, p.z_O)));
    }
}

TEST(MatMul, BothOrdersGiveTheProductAndExpectedReads) {
  for (Index n : {1, 2, 5, 16}) {
    const Matrix A = random_matrix(n, n, 1), B = random_matrix(n, n, 2);
    const CountedProduct one = matmul_one(A, B), two = matmul_two(A, B);
    EXPECT_TRUE(close(one.C, matmul(A, B)));
    EXPECT_TRUE(close(two.C, matmul(A, B)));
    EXPECT_EQ(one.reads, 2 * n * n * n);
    EXPECT_EQ(two.reads, 2 * n * n);
  }
}

// [Stratos, Efficient Attention §1.3]: O(Td + T²d/Λ), which is O(T²d²/M) with Λ = M/(4d). If d is much
// smaller than √M, this is less than T².
TEST(MemoryReads, FlashAttentionReadsMatchTheModel) {
  for (Index chunk : {1, 2, 3, 5, 8, 64})
    for (Index batch : {1, 3, 64}) {
      const Problem p = random_problem(12, 12, 4, 4, 1);
      EXPECT_EQ(flash1_forward(p.Q, p.K, p.V, batch, chunk).reads, flash_attention_reads(12, 4, chunk));
    }
  const Index T = 65536;
  for (Index d : {32, 64, 128}) {
    const Index M = 49152;  // entries: 192 KB of 32-bit elements
    const double leading = 1.0 * T * T * d * d / M;
    EXPECT_NEAR(flash_attention_reads(T, d, largest_chunk(M, d)) / leading, 8, 0.1);  // 2Td · T · 4d/M
    EXPECT_EQ(flash_attention_reads(T, d, largest_chunk(M, d)) < standard_attention_reads(T), 8 * d * d < M);
  }
  EXPECT_EQ(flash_attention_reads(T, 64, T), 4 * T * 64);  // with one chunk, every matrix is read once
}

TEST(MultiHead, OneHeadEqualsAttentionOfTheProjections) {
  const Matrix Q = random_matrix(5, 4, 1), K = random_matrix(7, 4, 2), V = random_matrix(7, 6, 3);
  const Matrix W_q = random_matrix(4, 4, 4), W_k = random_matrix(4, 4, 5), W_v = random_matrix(6, 6, 6),
               W_f = random_matrix(6, 6, 7);
  EXPECT_TRUE(close(multi_head_attention(Q, K, V, W_q, W_k, W_v, W_f, 1),
                    matmul(flash2_forward(matmul(Q, W_q), matmul(K, W_k), matmul(V, W_v), 2, 2).O, W_f)));
}

// Compares the heads of [Stratos, Efficient Attention §B.3.1] with a [B, H, L, d] problem of the oracle.
TEST(MultiHead, HeadsAreIndependentAttentionProblems) {
  const Index L = 5, T = 7, d = 4, D = 6, H = 2;
  const Matrix Q = random_matrix(L, d, 1), K = random_matrix(T, d, 2), V = random_matrix(T, D, 3);
  const Matrix W_q = random_matrix(d, d, 4), W_k = random_matrix(d, d, 5), W_v = random_matrix(D, D, 6),
               W_f = random_matrix(D, D, 7);
  const auto split = [&](const Matrix& X) {  // [n, H w] → [H, n, w]
    Vector heads;
    for (Index h = 0; h < H; ++h)
      for (double x : columns(X, h * X.cols / H, (h + 1) * X.cols / H).data) heads.push_back(x);
    return heads;
  };
  const Vector o = standard_attention_reference({1, H, H, L, T, d / H, D / H}, split(matmul(Q, W_q)),
                                                split(matmul(K, W_k)), split(matmul(V, W_v)))
                       .o;
  Matrix O(L, D);
  for (Index h = 0; h < H; ++h)
    for (Index i = 0; i < L; ++i)
      for (Index k = 0; k < D / H; ++k) O(i, h * (D / H) + k) = o[(h * L + i) * (D / H) + k];
  EXPECT_TRUE(close(multi_head_attention(Q, K, V, W_q, W_k, W_v, W_f, H), matmul(O, W_f)));
}

// [Stratos, FlashAttention §3.1]: GQA is MHA with key and value heads that are repeated R times.
TEST(MultiHead, GroupedQueriesEqualRepeatedKeyHeads) {
  const Index T = 6, d = 12, H = 6, d_H = 2;
  const Matrix X = random_matrix(T, d, 1), W_q = random_matrix(d, d, 2), W_f = random_matrix(d, d, 3);
  for (Index R : {1, 2, 3, 6}) {
    const Matrix U_k = random_matrix(d, d / R, 4), U_v = random_matrix(d, d / R, 5);
    Matrix W_k(d, d), W_v(d, d);
    for (Index i = 0; i < d; ++i)
      for (Index j = 0; j < d; ++j) {
        const Index from = j / d_H / R * d_H + j % d_H;
        W_k(i, j) = U_k(i, from);
        W_v(i, j) = U_v(i, from);
      }
    EXPECT_TRUE(close(grouped_query_attention(X, W_q, U_k, U_v, W_f, H, R),
                      multi_head_attention(X, X, X, W_q, W_k, W_v, W_f, H)));
  }
}

// [Stratos, FlashAttention §3.2]: MLA is MHA with rank-m projections. The up-projections of a head can be
// absorbed.
TEST(MultiHead, LatentAttentionIsLowRankAndAbsorbs) {
  const Index T = 6, d = 8, m = 3;
  const Matrix X = random_matrix(T, d, 1), D_q = random_matrix(d, m, 2), D_kv = random_matrix(d, m, 3),
               U_q = random_matrix(m, d, 4), U_k = random_matrix(m, d, 5), U_v = random_matrix(m, d, 6),
               W_f = random_matrix(d, d, 7);
  for (Index H : {1, 2, 4})
    EXPECT_TRUE(
        close(latent_attention(X, D_q, U_q, D_kv, U_k, U_v, W_f, H),
              multi_head_attention(X, X, X, matmul(D_q, U_q), matmul(D_kv, U_k), matmul(D_kv, U_v), W_f, H)));
  EXPECT_TRUE(close(absorbed_latent_attention(X, D_q, U_q, D_kv, U_k, U_v, W_f),
                    latent_attention(X, D_q, U_q, D_kv, U_k, U_v, W_f, 1)));
}

TEST(ReluProduct, GradientsMatchFiniteDifferencesOfTheLosses) {
  Vector u = random_vector(8, 1), w = random_vector(8, 2);
  EXPECT_TRUE(close(shared_operand_gradient(u),
                    four_point_gradient(u, [&] { return shared_operand_loss(u); }), kDifferenceTolerance));
  const SharedLayerGradients z = shared_layer_gradients(w, u);
  const auto loss = [&] { return shared_layer_loss(w, u); };
  EXPECT_TRUE(close(z.z_w, four_point_gradient(w, loss), kDifferenceTolerance));
  EXPECT_TRUE(close(z.z_u, four_point_gradient(u, loss), kDifferenceTolerance));
}

TEST(ReluProduct, GradientsMatchTheirClosedForms) {
  // f(u, u) = u², so the gradient is 2u + 3 + exp(u). At u = 0, the indicator is 0.
  const double e = std::exp(1.0);
  EXPECT_TRUE(close(shared_operand_gradient({1, -1, 0}), {5 + e, 1 + 1 / e, 4}));
  // layer(layer(u)) = w²u if wu > 0 and w > 0, otherwise 0.
  const SharedLayerGradients z = shared_layer_gradients({2, -2, 3, -3}, {5, -5, -7, 7});
  EXPECT_EQ(z.z_u, (Vector{4, 0, 0, 0}));
  EXPECT_EQ(z.z_w, (Vector{20, 0, 0, 0}));
}

}  // namespace
}  // namespace tg::reference
