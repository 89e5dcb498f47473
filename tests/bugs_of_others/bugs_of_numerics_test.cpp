// Runs the examples of bug reports about single ops. They concern numbers at the ends of their range, and
// derivatives whose formulas divide by zero.
#include <limits>

#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

constexpr double inf = std::numeric_limits<double>::infinity(),
                 nan = std::numeric_limits<double>::quiet_NaN();

struct ValueAndSlope {
  Vector y, slope;
};
// Computes an op's results and derivatives, element by element, on one thread.
template <class F>
ValueAndSlope at(F f, const Vector& points, DType dtype = f32) {
  Graph g;
  const Tensor x = g.input("x", {static_cast<std::int64_t>(points.size())}, dtype), y = f(x);
  const auto got = eval({y, gradients(sum(y), {x})[0]}, {{x, Array::of(points).to(dtype)}}, {.threads = 1});
  return {doubles(got[0]), doubles(got[1])};
}
Vector value(const Tensor& x) {
  return doubles(eval(x, {}, {.threads = 1}));
}
Tensor constant(Graph& g, const Vector& x, DType dtype = f32) {
  return g.constant(Array::of(x).to(dtype));
}

// https://github.com/pytorch/pytorch/issues/185770
// https://github.com/pytorch/pytorch/pull/192318
// gelu of infinite arguments was NaN, because of −∞·0. The limits of gelu are 0 and ∞.
TEST(BugsOfOthersNumerics, GeluHasItsLimitsAtInfinity) {
  const Vector y = at([](const Tensor& x) { return gelu(x); }, {inf, -inf, -1e38}).y;
  EXPECT_EQ(y[0], inf);
  EXPECT_NEAR(y[1], 0, 1e-20);
  EXPECT_NEAR(y[2], 0, 1e-20);
}

// https://github.com/pytorch/pytorch/pull/186286
// The gradient of gelu overflowed to NaN for large arguments. The gradient is 1 for large positive arguments
// and 0 for large negative arguments.
TEST(BugsOfOthersNumerics, SlopeOfGeluIsOneOrZeroFarOut) {
  const ValueAndSlope got =
      at([](const Tensor& x) { return gelu(x); }, {3e19, 1e30, inf, -3e19, -1e30, -inf});
  EXPECT_TRUE(close(got.slope, {1, 1, 1, 0, 0, 0}, 1e-20));
}

// https://github.com/pytorch/executorch/issues/22323
// The tanh form of gelu overflowed in x³ and gave NaN below −13. The correct result in f32 is 0.
TEST(BugsOfOthersNumerics, TanhGeluIsZeroFarBelow) {
  const ValueAndSlope got = at([](const Tensor& x) { return gelu_tanh(x); }, {-14, -100, -1e13, -1e30, -inf});
  for (const double y : got.y) EXPECT_NEAR(y, 0, 1e-30);
}

// https://github.com/ooples/AiDotNet.Tensors/pull/594
// If x³ overflowed, the gradient of the tanh form was NaN, because of ∞·0.
TEST(BugsOfOthersNumerics, SlopeOfTanhGeluIsOneOrZeroFarOut) {
  const ValueAndSlope got =
      at([](const Tensor& x) { return gelu_tanh(x); }, {2e13, 1e20, inf, -2e13, -1e20, -inf});
  EXPECT_EQ(got.slope, (Vector{1, 1, 1, 0, 0, 0}));
}

// https://github.com/tenstorrent/tt-metal/issues/56517
// Below −4, the sum 1 + tanh(u) is rounded to 0, so gelu became 0 too early. Results must have a small
// relative error there.
TEST(BugsOfOthersNumerics, TailOfTanhGeluKeepsItsDigits) {
  const Vector x = {-4, -5, -5.5, -6};
  const Vector got = at([](const Tensor& t) { return gelu_tanh(t); }, x).y;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double u = std::sqrt(2 / 3.14159265358979323846) * (x[i] + 0.044715 * x[i] * x[i] * x[i]);
    const double right = x[i] / (1 + std::exp(-2 * u));
    EXPECT_NEAR(got[i] / right, 1, 1e-4) << x[i];
  }
}

// https://github.com/antirez/ds4/pull/498
// silu of a large negative number was NaN or −∞, because the exponential overflowed. silu tends to 0.
TEST(BugsOfOthersNumerics, SiluIsZeroFarBelow) {
  const ValueAndSlope got = at([](const Tensor& x) { return silu(x); }, {-1000, -1e30, -inf});
  for (const double y : got.y) EXPECT_EQ(y, 0);
}

// https://github.com/trymirai/lalamo/pull/328
// If the exponential overflowed, the gradient of silu contained ∞·0. The limits of the gradient are 0 and 1.
TEST(BugsOfOthersNumerics, SlopeOfSiluIsZeroOrOneFarOut) {
  EXPECT_EQ(at([](const Tensor& x) { return silu(x); }, {-1000, -1e30, 1000}).slope, (Vector{0, 0, 1}));
}

// https://github.com/clab/dynet/issues/1525
// https://github.com/jeshraghian/snntorch/pull/433
// If eˣ overflows, eˣ/(1 + eˣ) is NaN. The sigmoid of large numbers is 1.
TEST(BugsOfOthersNumerics, SigmoidOfLargeNumbersIsOne) {
  EXPECT_EQ(at([](const Tensor& x) { return sigmoid(x); }, {100, 1000, -1000, inf}).y, (Vector{1, 1, 0, 1}));
}

// https://github.com/tensorflow/tensorflow/issues/2641
// https://github.com/pytorch/pytorch/issues/106789
// The gradient of a product was computed as the product divided by the element. This is NaN if the element is
// 0. The gradient must be computed as the product of the other elements.
TEST(BugsOfOthersNumerics, GradientOfProductWithZeroIsProductOfOthers) {
  const auto product = [](const Tensor& x) { return prod(x); };
  EXPECT_EQ(at(product, {2, 0, 3, 4}).slope, (Vector{0, 24, 0, 0}));
  EXPECT_EQ(at(product, {2, 0, 0, 4}).slope, (Vector{0, 0, 0, 0}));
}

// https://github.com/tensorflow/tensorflow/issues/44556
// The second derivative of a product with zeros was zero. The gradient of bc + ac + ab is (b + c, a + c, a +
// b).
TEST(BugsOfOthersNumerics, SecondDerivativeOfAProductWithZeros) {
  Graph g;
  const Tensor x = g.input("x", {3}, f64);
  const Tensor z = gradients(prod(x), {x})[0];
  EXPECT_EQ(doubles(eval(gradients(sum(z), {x})[0], {{x, Vector{0, 0, 3}}})), (Vector{3, 3, 0}));
}

// https://github.com/rmcgibbo/logsumexp/issues/2
// https://github.com/JuliaStats/StatsFuns.jl/issues/22
// The logarithm of a sum of zeros was NaN, because of −∞ − (−∞). The result is −∞.
TEST(BugsOfOthersNumerics, LogsumexpOfMinusInfinitiesIsMinusInfinity) {
  Graph g;
  EXPECT_EQ(value(logsumexp(constant(g, {-inf, -inf, -inf}))), (Vector{-inf}));
}

// https://github.com/pytorch/pytorch/issues/31829
// https://github.com/google/jax/issues/6811
// The gradients of a logsumexp of −∞ were NaN. They are 0.
TEST(BugsOfOthersNumerics, LogsumexpOfMinusInfinitiesHasZeroGradients) {
  EXPECT_EQ(at([](const Tensor& x) { return logsumexp(x, {0}); }, {-inf, -inf}).slope, (Vector{0, 0}));
}

// https://github.com/uTensor/uTensor/issues/175
// https://github.com/dotnet/machinelearning/issues/3648
// softmax of large numbers was NaN. Only the differences of numbers matter.
TEST(BugsOfOthersNumerics, SoftmaxOfLargeNumbersDependsOnDifferences) {
  Graph g;
  EXPECT_TRUE(close(value(softmax(constant(g, {1000, 1000, 1000, 1000}), 0)), Vector(4, 0.25), 1e-6));
  EXPECT_TRUE(close(value(softmax(constant(g, {1e4, -1e4}), 0)), {1, 0}, 1e-6));
}

// https://github.com/microsoft/onnxruntime/issues/28463
// https://github.com/ml-explore/mlx/issues/2238
// The variance was computed as the mean of squares minus the square of the mean. For numbers far from 0, this
// difference has few correct digits. The mean of squared deviations must be computed instead.
TEST(BugsOfOthersNumerics, LayerNormOfARowFarFromZero) {
  Graph g;
  const std::int64_t n = 64;
  Vector x, expected;
  for (std::int64_t i = 0; i < n; ++i) x.push_back(16384 + static_cast<double>(i % 2));
  for (std::int64_t i = 0; i < n; ++i) expected.push_back((static_cast<double>(i % 2) - 0.5) / 0.5);
  const Tensor y = layer_norm(constant(g, x), Tensor(), Tensor(), 1e-12);
  EXPECT_TRUE(close(value(y), expected, 1e-4));
}

// https://github.com/nntrainer/nntrainer/issues/3935
// https://github.com/pytorch/executorch/pull/18772
// Squares of f16 numbers above 256 overflow in f16, so rows became 0 or NaN. Squares must be summed in f32.
TEST(BugsOfOthersNumerics, RmsNormOfLargeF16NumbersIsFinite) {
  Graph g;
  EXPECT_EQ(value(rms_norm(constant(g, {1000, -1000, 1000, 1000}, f16), Tensor(), 0)), (Vector{1, -1, 1, 1}));
}

// https://github.com/JuliaLang/julia/pull/57809
// https://github.com/VoidStarKat/half-rs/issues/25
// https://github.com/arch-hdl-lang/arch-com/issues/629
// A double was converted to f16 or bf16 through f32, so it was rounded twice. A number just above the
// midpoint must be rounded up.
TEST(BugsOfOthersNumerics, DoublesAreRoundedOnceToSixteenBits) {
  Graph g;
  const double middle = 1 + 0x1p-8, middle_of_f16 = 1 + 0x1p-11;
  const Tensor x = g.input("x", {5}, f64);
  const Vector points(5, middle + 0x1p-40), points_f16(5, middle_of_f16 + 0x1p-40);
  for (const double y : doubles(eval(cast(x, bf16), {{x, points}}))) EXPECT_EQ(y, 1 + 0x1p-7);
  for (const double y : doubles(eval(cast(x, f16), {{x, points_f16}}))) EXPECT_EQ(y, 1 + 0x1p-10);
}

// https://github.com/pytorch/pytorch/issues/96947
// https://github.com/pytorch/pytorch/issues/197079
// https://github.com/VoidStarKat/half-rs/issues/152
// Uniform numbers in [0, 1) were rounded up to 1 in narrow types. They must stay below 1.
TEST(BugsOfOthersNumerics, UniformNumbersStayBelowTheirBound) {
  Graph g;
  for (const DType t : {bf16, f16, f32})
    for (const double u : value(uniform(g, {20000}, 0, 1, t))) ASSERT_LT(u, 1) << name_of(t);
}

// https://github.com/tensorflow/tensorflow/issues/23312
// https://github.com/pytorch/pytorch/issues/180150
// Running sums in the narrow type stopped growing. Above 2^24, f32 cannot represent odd numbers, but the
// running sum must still grow.
TEST(BugsOfOthersNumerics, RunningSumsDoNotStall) {
  Graph g;
  EXPECT_EQ(value(cumsum(constant(g, {0x1p24, 1, 1, 1, 1}), 0)),
            (Vector{0x1p24, 0x1p24, 0x1p24 + 2, 0x1p24 + 4, 0x1p24 + 4}));
}

// https://github.com/pytorch/pytorch/issues/56734
// https://github.com/apache/mxnet/issues/18563
// If several elements were the maximum, each got the complete gradient. They must share the gradient.
TEST(BugsOfOthersNumerics, EqualLargestElementsShareTheGradient) {
  EXPECT_EQ(at([](const Tensor& x) { return max(x, {0}, false); }, {1, 3, 3, 2}).slope,
            (Vector{0, 0.5, 0.5, 0}));
}

// https://github.com/pytorch/pytorch/issues/41998
// https://github.com/pytorch/pytorch/issues/16762
// If several elements were the maximum, the result of argmax depended on the length of the row. The result
// must be the index of the first maximum.
TEST(BugsOfOthersNumerics, ArgmaxNamesTheFirstOfEqualElements) {
  Graph g;
  for (const std::size_t n : {3, 100, 5000, 20000})
    EXPECT_EQ(value(argmax(constant(g, Vector(n, 7.0)), {0})), (Vector{0})) << n;
}

// https://github.com/tinygrad/tinygrad/issues/12409
// https://github.com/pytorch/pytorch/issues/23156
// The gradient of the operand that `where` does not select was 0·∞. This gradient must be 0.
TEST(BugsOfOthersNumerics, UnselectedOperandOfWhereHasAZeroGradient) {
  const auto f = [](const Tensor& x) { return sum(where(greater(x, 0), x, 1) / where(greater(x, 0), 1, 0)); };
  EXPECT_EQ(at(f, {2, -1}).slope, (Vector{1, 0}));
}

// https://github.com/FluxML/Zygote.jl/pull/1625
// https://github.com/ml-explore/mlx/pull/505
// The gradient of aᵇ with respect to b was NaN at a = 0, because of 0·log 0. This gradient is 0.
TEST(BugsOfOthersNumerics, ExponentOfZeroHasAZeroGradient) {
  const auto f = [](const Tensor& b) { return pow(zeros_like(b), b); };
  EXPECT_EQ(at(f, {1, 2, 3}).slope, (Vector{0, 0, 0}));
  EXPECT_EQ(at([](const Tensor& a) { return pow(a, 2); }, {0, 3}).slope, (Vector{0, 6}));
}

// https://github.com/HIPS/autograd/issues/586
// The gradient of a norm was NaN at 0. It must be 0 there.
TEST(BugsOfOthersNumerics, NormOfZerosHasAZeroGradient) {
  EXPECT_EQ(at([](const Tensor& x) { return global_norm({x}); }, {0, 0, 0}).slope, (Vector{0, 0, 0}));
}

// https://github.com/KellerJordan/modded-nanogpt/issues/39
// https://github.com/EleutherAI/gpt-neox/issues/1003
// Angles of positions were computed in bf16. bf16 cannot represent 257. Angles must be exact before range
// reduction.
TEST(BugsOfOthersNumerics, AnglesOfLatePositionsAreExact) {
  Graph g;
  const std::vector<std::int32_t> positions = {1, 257, 4097, 100003};
  const Tensor x = g.constant(Array::of({4, 2}, Vector{1, 0, 1, 0, 1, 0, 1, 0}).to(f32));
  const Vector got = value(rope(x, g.constant(Array::of(positions)), {.theta = 10000}));
  for (std::size_t t = 0; t < 4; ++t) {
    EXPECT_NEAR(got[2 * t], std::cos(static_cast<double>(positions[t])), 1e-6) << positions[t];
    EXPECT_NEAR(got[2 * t + 1], std::sin(static_cast<double>(positions[t])), 1e-6) << positions[t];
  }
}

// https://github.com/pytorch/pytorch/issues/1631
// If gather used an element several times, the gradient of only one use was kept. The gradients of all uses
// must be summed.
TEST(BugsOfOthersNumerics, ElementGatheredTwiceHasBothGradients) {
  Graph g;
  const Tensor x = g.input("x", {3}, f64),
               index = g.constant(Array::of(std::vector<std::int64_t>{0, 2, 0, 0}));
  const Tensor y = gather(x, 0, index) * g.constant(Array::of(Vector{1, 2, 3, 4}));
  EXPECT_EQ(doubles(eval(gradients(sum(y), {x})[0], {{x, Vector{1, 1, 1}}})), (Vector{8, 0, 2}));
}

// https://github.com/FluxML/Flux.jl/pull/1516
// https://github.com/apache/mxnet/issues/17703
// If a token occurred twice, one gradient was lost. The row of the table must get the sum of both.
TEST(BugsOfOthersNumerics, RepeatedTokensAddUpInTheTable) {
  Graph g;
  const Tensor table = g.input("table", {3, 2}, f64),
               ids = g.constant(Array::of(std::vector<std::int32_t>{1, 0, 1, 1}));
  const Tensor y = embedding(table, ids) * g.constant(Array::of({4, 1}, Vector{1, 2, 3, 4}));
  EXPECT_EQ(doubles(eval(gradients(sum(y), {table})[0], {{table, Vector(6, 1.0)}})),
            (Vector{2, 2, 8, 8, 0, 0}));
}

// https://github.com/tensorflow/tensorflow/issues/56961
// https://github.com/pytorch/pytorch/issues/146299
// If several values were written to one element, all of them had a gradient. Only the last value must have a
// gradient.
TEST(BugsOfOthersNumerics, OverwrittenValuesHaveNoGradient) {
  Graph g;
  const Tensor src = g.input("src", {3}, f64), x = g.constant(Array::of(Vector{0, 0})),
               index = g.constant(Array::of(std::vector<std::int64_t>{1, 1, 0}));
  const Tensor y = index_assign(x, 0, index, src);
  EXPECT_EQ(doubles(eval(gradients(sum(y), {src})[0], {{src, Vector{5, 6, 7}}})), (Vector{0, 1, 1}));
}

}  // namespace
