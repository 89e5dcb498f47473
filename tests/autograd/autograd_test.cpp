// Compares gradients of small graphs with closed forms.
#include <gtest/gtest.h>

#include <cmath>

#include <tilegrad/tilegrad.h>

namespace {

using namespace tg;

TEST(Gradients, MatchTheDerivativeOfAPolynomial) {
  Graph g;
  const Tensor x = g.input("x", {3}, f64);
  const Tensor loss = sum(x * x * x + 2 * x);
  const Tensor z = gradients(loss, {x})[0];
  const auto values = eval({loss, z}, {{x, std::vector<double>{1, 2, 3}}});
  EXPECT_EQ(values[0].item<double>(), 36 + 12);
  EXPECT_EQ(values[1].values<double>(), (std::vector<double>{5, 14, 29}));
}

TEST(Gradients, FlowThroughViewsAndBroadcasts) {
  Graph g;
  const Tensor x = g.input("x", {2, 3}, f64), row = g.input("row", {3}, f64);
  const Tensor loss =
      sum(transpose(x, 0, 1).reshape({6}) * expand(row, {2, 3}).reshape({6}) * x.reshape({6}));
  const auto z = gradients(loss, {x, row});
  const auto values = eval({loss, z[0], z[1]}, {{x, std::vector<double>{1, 2, 3, 4, 5, 6}},
                                                {row, std::vector<double>{1, 10, 100}}});
  // transposed x flat: 1 4 2 5 3 6; row flat: 1 10 100 1 10 100; x flat: 1 2 3 4 5 6
  EXPECT_EQ(values[0].item<double>(),
            1 * 1 + 4 * 10 * 2 + 2 * 100 * 3 + 5 * 1 * 4 + 3 * 10 * 5 + 6 * 100 * 6);
  EXPECT_EQ(values[2].values<double>(), (std::vector<double>{1 * 1 + 5 * 4, 4 * 2 + 3 * 5, 2 * 3 + 6 * 6}));
}

TEST(Gradients, GradientOfGradientIsSecondDerivative) {
  Graph g;
  const Tensor x = g.input("x", {2}, f64);
  const Tensor first = gradients(sum(exp(x) * x), {x})[0];
  const Tensor second = gradients(sum(first), {x})[0];
  const auto v = eval(second, {{x, std::vector<double>{0, 1}}}).values<double>();
  EXPECT_DOUBLE_EQ(v[0], 2);
  EXPECT_DOUBLE_EQ(v[1], 3 * std::exp(1.0));
}

TEST(Gradients, AccumulateOverAllChildren) {  // u affects L through three children
  Graph g;
  const Tensor u = g.input("u", {8}, f64);
  const Tensor loss = sum(relu(u * u) + 3 * u + exp(u));
  std::vector<double> us, expected;
  for (int i = 0; i < 8; ++i) {
    us.push_back(i * 0.3 - 1);
    expected.push_back(2 * us.back() + 3 + std::exp(us.back()));
  }
  const auto z = eval(gradients(loss, {u})[0], {{u, us}}).values<double>();
  for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(z[i], expected[i], 1e-14);
}

// Computes a recurrence over the columns of x. slice() or unbind() reads the columns.
Tensor last_state(const Tensor& x, bool slices) {
  const std::int64_t length = x.size(1);
  const auto columns = unbind(x, 1);
  Tensor h = full(x.graph(), {x.size(0)}, 0, f64);
  for (std::int64_t t = 0; t < length; ++t)
    h = tanh(h + (slices ? slice(x, 1, t, t + 1).squeeze(1) : columns[static_cast<std::size_t>(t)]));
  return sum(h) + (slices ? sum(slice(x, 1, 1, length, 3) * 2) : 0.0 * sum(h));
}

TEST(Gradients, SlicesAccumulateInPlace) {
  Graph g;
  constexpr std::int64_t length = 50;
  const Tensor x = g.input("x", {4, length}, f64);
  Array values(x.shape(), f64);
  for (std::int64_t i = 0; i < values.numel(); ++i) values.set(i, std::sin(static_cast<double>(i)));

  const Tensor z = gradients(last_state(x, true), {x})[0];
  const auto whole = eval(gradients(last_state(x, false), {x})[0], {{x, values}}).values<double>();
  const auto sliced = eval(z, {{x, values}}).values<double>();
  for (std::size_t i = 0; i < whole.size(); ++i)
    EXPECT_EQ(sliced[i], whole[i] + (i % length % 3 == 1 ? 2 : 0)) << i;

  const Program p = compile(g, {z});
  int zeros = 0, parts = 0;
  for (const Step& s : p.steps()) {
    if (s.op->name == "slice_assign") {
      EXPECT_EQ(s.in[0].data, s.out[0].data);
      ++parts;
    } else {
      zeros += s.op->name == "full" && s.out[0].layout.numel() == x.numel();
      EXPECT_TRUE(s.op->name == "full" || s.out[0].layout.numel() < x.numel()) << s.name;
    }
  }
  EXPECT_EQ(zeros, 1);
  EXPECT_EQ(parts, length + 1);
}

// As in the gradient of a slice, a part is assigned to a tensor. But here, the tensor contains ones instead
// of zeros. So elements outside the part also count.
TEST(Gradients, PartAssignedIntoOnesIsAddedWhole) {
  const CustomOp op = custom_op(
      "part_of_ones",
      {.forward = [](const std::vector<Tensor>& in) { return std::vector<Tensor>{in[0] * 2}; },
       .backward =
           [](auto& in, auto&, auto&) {
             return std::vector<Tensor>{slice_assign(full_like(in[0], 1), slice(in[0], 0, 0, 1), 0, 1)};
           }});
  Graph g;
  const Tensor x = g.input("x", {3}, f64);
  const Tensor z = gradients(sum(x * x) + sum(op(x)), {x})[0];
  EXPECT_EQ(eval(z, {{x, std::vector<double>{5, 6, 7}}}).values<double>(), (std::vector<double>{11, 17, 15}));
}

TEST(Gradients, UnusedTensorHasZeroGradient) {
  Graph g;
  const Tensor x = g.input("x", {2}, f64), y = g.input("y", {3}, f32);
  const auto z = gradients(sum(x), {y, x});
  EXPECT_EQ(eval(z[0]).values<float>(), (std::vector<float>{0, 0, 0}));
}

TEST(Gradients, CotangentGivesVectorJacobianProduct) {
  Graph g;
  const Tensor x = g.input("x", {3}, f64), y = x * x;
  const Tensor z = gradients(y, {x}, g.constant(Array::of<double>({3}, {1, -1, 10})))[0];
  EXPECT_EQ(eval(z, {{x, std::vector<double>{1, 2, 3}}}).values<double>(), (std::vector<double>{2, -4, 60}));
  EXPECT_THROW(gradients(y, {x}), GradientError);  // more than one element
}

TEST(Gradients, WrtIntermediateHoldInputsFixed) {
  Graph g;
  const Tensor x = g.input("x", {2}, f64), y = exp(x), loss = sum(y * y * x);
  const Tensor z = gradients(loss, {y})[0];  // 2·y·x, x held fixed
  const auto v = eval(z, {{x, std::vector<double>{1, 2}}}).values<double>();
  EXPECT_DOUBLE_EQ(v[0], 2 * std::exp(1.0));
  EXPECT_DOUBLE_EQ(v[1], 4 * std::exp(2.0));
}

TEST(Gradients, DoNotFlowThroughStopGradient) {
  Graph g;
  const Tensor x = g.input("x", {2}, f64);
  const Tensor z = gradients(sum(x * stop_gradient(x)), {x})[0];
  EXPECT_EQ(eval(z, {{x, std::vector<double>{3, 5}}}).values<double>(), (std::vector<double>{3, 5}));
}

TEST(Gradients, Keep16BitPrecisionOfTheirValues) {
  Graph g;
  const Tensor x = g.input("x", {2}, bf16), w = g.input("w", {2}, f32);
  const auto z = gradients(sum(cast(x, f32) * w), {x, w});
  EXPECT_EQ(z[0].dtype(), bf16);
  EXPECT_EQ(z[1].dtype(), f32);
}

// The model is a deep stack of layers. Each layer keeps a value for its gradient.
Tensor stack(const Tensor& x, int depth, bool recompute) {
  Tensor y = x;
  for (int i = 0; i < depth; ++i) {
    const auto layer = [](const std::vector<Tensor>& in) {
      Tensor h = in[0];
      for (int k = 0; k < 4; ++k) h = sin(transpose(h, 0, 1)) + h;
      return std::vector<Tensor>{h};
    };
    y = recompute ? checkpoint(layer, {y})[0] : layer({y})[0];
  }
  return y;
}

TEST(Checkpoint, GivesTheSameGradientInLessMemory) {
  Array xs({40, 40}, f64);
  for (int i = 0; i < 1600; ++i) xs.set(i, std::sin(i));
  Array z[2];
  std::size_t arena[2];
  for (int recompute : {0, 1}) {
    Graph g;
    const Tensor x = g.input("x", {40, 40}, f64);
    const Tensor zx = gradients(sum(stack(x, 8, recompute)), {x})[0];
    Program p = compile(g, {zx}, {.verify = true});
    p.run({{x, xs}});
    z[recompute] = p.fetch(zx);
    arena[recompute] = compile(g, {zx}).memory().arena;
  }
  EXPECT_TRUE(z[0].same_bits(z[1]));
  EXPECT_LT(arena[1], arena[0] / 2) << arena[0];
}

// The op x²·y has no vjp, so its gradient comes from its decomposition.
const Op square_times_op{.name = "square_times",
                         .infer = [](std::span<const Operand> in, const Attrs&) -> std::vector<OutSpec> {
                           return {{in[0].dtype, row_major(in[0].shape())}};
                         },
                         .decompose = [](std::span<const Tensor> in, const Attrs&) -> std::vector<Tensor> {
                           return {in[0] * in[0] * in[1]};
                         }};

TEST(Gradients, OpWithoutGradientUsesItsDecomposition) {
  Graph g;
  const Tensor x = g.input("x", {2}, f64), y = g.input("y", {2}, f64);
  const auto z = gradients(sum(record(square_times_op, {x * 2, y})), {x, y});  // 4x²y
  const Tensor second = gradients(sum(z[0]), {x})[0];
  const auto v = eval({z[0], z[1], second}, {{x, std::vector<double>{1, 2}}, {y, std::vector<double>{3, 5}}});
  EXPECT_EQ(v[0].values<double>(), (std::vector<double>{24, 80}));
  EXPECT_EQ(v[1].values<double>(), (std::vector<double>{4, 16}));
  EXPECT_EQ(v[2].values<double>(), (std::vector<double>{24, 40}));
}

TEST(Gradients, DecompositionDistinguishesOperandsThatAreOneTensor) {
  Graph g;
  const Tensor x = g.input("x", {2}, f64);
  const Tensor z = gradients(sum(record(square_times_op, {x, x})), {x})[0];
  EXPECT_EQ(eval(z, {{x, std::vector<double>{1, 2}}}).values<double>(), (std::vector<double>{3, 12}));
}

TEST(Gradients, OpWithoutGradientIsRefusedWithItsReason) {
  Graph g;
  const Tensor x = g.input("x", {2}, f64);
  const Op opaque{.name = "opaque",
                  .infer =
                      [](std::span<const Operand> in, const Attrs&) {
                        return std::vector<OutSpec>{{in[0].dtype, in[0].layout}};
                      },
                  .not_differentiable = "nobody wrote its gradient"};
  const Tensor y = record(opaque, {x});
  try {
    gradients(sum(y), {x});
    FAIL();
  } catch (const GradientError& e) {
    const std::string m = e.what();
    EXPECT_NE(m.find("[opaque]"), std::string::npos) << m;
    EXPECT_NE(m.find("nobody wrote its gradient"), std::string::npos) << m;
    EXPECT_NE(m.find("autograd_test.cpp"), std::string::npos) << m;
  }
  EXPECT_NO_THROW(gradients(sum(stop_gradient(y)), {x}));  // no gradient reaches y
}

}  // namespace
