// Compares user-defined ops with plain loops, for the example in [Stratos, Efficient Attention §C]. The ops
// are written as graph code or as C++ functions.
#include <gtest/gtest.h>

#include <tilegrad/tilegrad.h>
#include "examples/relu_product.h"
#include "tests/reference/reference_checks.h"
#include "tests/reference/relu_product.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using reference::close;
using reference::random_vector;

using Builder = Tensor (*)(TensorArg, TensorArg);

// L = (f(u, u) + 3u + exp(u)).sum(). So u has three children. Both operands of the first child are u.
void matches_the_seed(Builder f) {
  const std::vector<double> u = random_vector(8, 1);
  Graph g;
  const Tensor x = g.input("u", {8}, f64);
  const Tensor loss = sum(f(x, x) + 3 * x + exp(x));
  const auto values = eval({loss, gradients(loss, {x})[0]}, {{x, u}});
  EXPECT_NEAR(values[0].item<double>(), reference::shared_operand_loss(u), 1e-12);
  EXPECT_TRUE(close(values[1].values<double>(), reference::shared_operand_gradient(u)));
}

TEST(CustomOp, CppFunctionsMatchTheSeed) {
  matches_the_seed(example::relu_product);
}
TEST(CustomOp, GraphCodeMatchesTheSeed) {
  matches_the_seed(example::relu_product_graph);
}

TEST(CustomOp, LayerWithASharedWeightMatchesTheSeed) {
  const std::vector<double> w = random_vector(8, 2), u = random_vector(8, 3);
  const example::ReluProduct layer(Array::of<double>({8}, w));
  Graph g;
  const Tensor x = g.input("u", {8}, f64);
  const Tensor loss = sum(layer(layer(x)));
  const auto z = gradients(loss, {g.param(layer.w()), x});
  const auto values = eval({loss, z[0], z[1]}, {{x, u}});
  const auto expected = reference::shared_layer_gradients(w, u);
  EXPECT_NEAR(values[0].item<double>(), reference::shared_layer_loss(w, u), 1e-12);
  EXPECT_TRUE(close(values[1].values<double>(), expected.z_w));
  EXPECT_TRUE(close(values[2].values<double>(), expected.z_u));
}

TEST(CustomOp, CppFunctionsAcceptStridedAnd16BitOperands) {
  Graph g;
  const Tensor x = g.input("x", {2, 3}, bf16), y = g.input("y", {3, 2}, bf16);
  const Tensor t = example::relu_product(transpose(x, 0, 1), y);
  Array a({2, 3}, bf16), b({3, 2}, bf16);
  for (int i = 0; i < 6; ++i) a.set(i, i), b.set(i, i % 2 ? -1 : 1);
  const Array out = eval(t, {{x, a}, {y, b}});
  EXPECT_EQ(out.dtype(), bf16);
  const double expected[] = {0, 0, 1, 0, 2, 0};  // xᵀ = 0 3, 1 4, 2 5
  for (int i = 0; i < 6; ++i) EXPECT_EQ(out.at(i), expected[i]);
}

TEST(CustomOp, GraphCodeUsesItsOwnGradientInsteadOfItsNodesGradients) {
  const CustomOp op =
      custom_op("straight_through", {[](const auto& in) { return std::vector<Tensor>{sign(in[0])}; },
                                     [](const auto&, const auto&, const auto& z) { return z; }});
  Graph g;
  const Tensor x = g.input("x", {2}, f64);
  const Tensor z = gradients(sum(5 * op(x)), {x})[0];
  EXPECT_EQ(eval(z, {{x, std::vector<double>{1, -1}}}).values<double>(), (std::vector<double>{5, 5}));
}

TEST(CustomOp, GraphCodeNests) {
  const auto times = [](double factor) {
    return custom_op("times", {[factor](const auto& in) { return std::vector<Tensor>{in[0] * factor}; },
                               [factor](const auto&, const auto&, const auto& z) {
                                 return std::vector<Tensor>{z[0] * (10 * factor)};
                               }});
  };
  const CustomOp inner = times(2);
  const CustomOp outer = custom_op(
      "outer", {[inner](const auto& in) { return std::vector<Tensor>{inner(in[0])}; },
                [](const auto&, const auto&, const auto& z) { return std::vector<Tensor>{z[0] * 7}; }});
  Graph g;
  const Tensor x = g.input("x", {1}, f64);
  const Tensor once = inner(x), nested = outer(x);
  const auto v = eval({nested, gradients(sum(once), {x})[0], gradients(sum(nested), {x})[0]},
                      {{x, std::vector<double>{3}}});
  EXPECT_EQ(v[0].item<double>(), 6);
  EXPECT_EQ(v[1].item<double>(), 20);
  EXPECT_EQ(v[2].item<double>(), 7);
}

TEST(CustomOp, GraphCodeThatReturnsItsInputHasItsOwnGradient) {
  const CustomOp reversed =
      custom_op("reverse_gradient",
                {[](const auto& in) { return in; },
                 [](const auto&, const auto&, const auto& z) { return std::vector<Tensor>{-z[0]}; }});
  Graph g;
  const Tensor x = g.input("x", {1}, f64);
  const Tensor z = gradients(sum(3 * x + reversed(x)), {x})[0];
  EXPECT_EQ(eval(z, {{x, std::vector<double>{1}}}).item<double>(), 2);
}

TEST(CustomOp, GraphCodeThatReadsUngivenTensorsIsRefused) {
  Graph g;
  const Tensor x = g.input("x", {2}, f64), y = g.input("y", {2}, f64);
  const Parameter w("w", Array({2}, f64));
  const auto backward = [](const auto&, const auto&, const auto& z) { return z; };
  EXPECT_THROW(
      custom_op("captures", {[y](const auto& in) { return std::vector<Tensor>{in[0] * y}; }, backward})(x),
      Error);
  EXPECT_THROW(custom_op("captures", {[&](const auto& in) { return std::vector<Tensor>{in[0] * g.param(w)}; },
                                      backward})(x),
               Error);
}

TEST(CustomOp, MissingBackwardRefusesTheGradientWithItsReason) {
  const CustomOp op = register_host_op({.name = "forward_only", .forward = [](auto in, auto out) {
                                          for (int i = 0; i < 2; ++i) out[0].set(i, in[0].at(i));
                                        }});
  Graph g;
  const Tensor x = g.input("x", {2}, f64);
  try {
    gradients(sum(op(x)), {x});
    FAIL() << "the gradient was not refused";
  } catch (const GradientError& e) {
    EXPECT_NE(std::string(e.what()).find("without a backward"), std::string::npos) << e.what();
  }
}

// Covers every way to call the op. One way is through the Op object.
TEST(CustomOp, ACallWithoutATensorIsRefused) {
  const CustomOp op =
      register_host_op({.name = "of_nothing", .forward = [](auto, auto out) { out[0].set(0, 1); }});
  Graph g;
  const std::vector<Tensor> none;
  const auto here = std::source_location::current();
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] { op.all({}); }, [&] { op.all(none, here); }, [&] { op.all({2.5}); },
           [&] { g.record(*find_op("of_nothing"), none, {}, here); }})
    tg::testing::expect_error<Error>(call, {"[of_nothing]", "needs at least one tensor"});
}

TEST(CustomOp, ExceptionOfAUserFunctionLeavesRun) {
  const CustomOp op = register_host_op(
      {.name = "throws", .forward = [](auto, auto) { throw std::runtime_error("the user's own message"); }});
  Graph g;
  const Tensor x = g.input("x", {2}, f64);
  for (int threads : {1, 2}) {
    try {
      eval(op(x) + 1, {{x, std::vector<double>{1, 2}}}, {.threads = threads});
      FAIL() << "nothing was thrown";
    } catch (const Error& e) {  // the message has the step and line; the exception is nested
      EXPECT_NE(
          std::string(e.what()).find("throws] its C++ function threw: the user's own message (custom_op"),
          std::string::npos)
          << e.what();
      EXPECT_THROW(std::rethrow_if_nested(e), std::runtime_error);
    }
  }
}

TEST(CustomOp, AfterAnExceptionNoStepRunsAndNoParameterChanges) {
  const CustomOp op = register_host_op({.name = "refuses", .forward = [](auto in, auto out) {
                                          if (in[0].at(0) < 0) throw std::runtime_error("below zero");
                                          out[0].set(0, in[0].at(0));
                                        }});
  for (int threads : {1, 2}) {
    Graph g;
    const Parameter w("w", Array::of<double>({1}, {5}));
    const Tensor x = g.input("x", {1}, f64), w_old = g.param(w);
    // The first assigned value depends on the op, but the second one does not.
    const Parameter steps("steps", Array::of<double>({1}, {0}));
    Program program = compile(
        g, {op(x)}, {.assign = {{w, w_old + op(x)}, {steps, g.param(steps) + 1}}, .threads = threads});
    program.run({{x, std::vector<double>{2}}});
    EXPECT_THROW(program.run({{x, std::vector<double>{-1}}}), std::runtime_error);
    EXPECT_EQ(w.read().at(0), 7);
    EXPECT_EQ(steps.read().at(0), 1);
    program.run({{x, std::vector<double>{3}}});
    EXPECT_EQ(w.read().at(0), 10);
    EXPECT_EQ(steps.read().at(0), 2);
  }
}

// `infer` may return any layout, but the result is always row-major. Here `infer` returns the layout of a
// slice with an offset. The op's result has no offset.
TEST(CustomOp, OutputsOfCppFunctionsAreRowMajor) {
  const auto add_one = [](std::span<const HostView> in, std::span<const HostView> out) {
    for (int i = 0; i < 4; ++i) out[0].set(i, in[0].at(i) + 1);
  };
  const CustomOp like_the_first = register_host_op({.name = "like_the_first", .forward = add_one});
  const CustomOp transposed =
      register_host_op({.name = "transposed_result",
                        .infer =
                            [](std::span<const Operand> in) {
                              return std::vector<OutSpec>{{in[0].dtype, permute(in[0].layout, {1, 0})}};
                            },
                        .forward = add_one});
  Graph g;
  const Tensor x = g.input("x", {3, 2}, f64), part = slice(x, 0, 1, 3);
  for (const CustomOp& op : {like_the_first, transposed}) {
    const Tensor y = op(part);
    EXPECT_EQ(y.layout().offset, 0);
    EXPECT_TRUE(y.layout().is_contiguous());
    EXPECT_EQ(eval(y, {{x, std::vector<double>{1, 2, 3, 4, 5, 6}}}).values<double>(),
              (std::vector<double>{4, 5, 6, 7}));
  }
}

TEST(CustomOp, SeveralOutputsAndIntegerInputs) {
  // The op returns row i of x times k[i], and the sum of this row.
  const CustomOp op = register_host_op(
      {.name = "scaled_rows",
       .infer =
           [](std::span<const Operand> in) {
             return std::vector<OutSpec>{{in[0].dtype, in[0].layout}, {in[0].dtype, row_major({})}};
           },
       .forward =
           [](auto in, auto out) {
             double total = 0;
             for (int i = 0; i < 6; ++i) {
               const double t = in[0].at(i) * in[1].at(i / 3);
               out[0].set(i, t);
               total += t;
             }
             out[1].set(0, total);
           },
       .backward =
           [](const HostGradient& g) {
             EXPECT_EQ(g.in.size(), 2u);
             EXPECT_EQ(g.z_in.size(), 1u);  // integers have no gradient
             EXPECT_EQ(g.z.size(), 2u);
             ASSERT_EQ(g.out.size(), 2u);
             EXPECT_EQ(g.out[0].at(4), g.in[0].at(4) * g.in[1].at(1));
             EXPECT_EQ(g.out[1].at(0), 21);
             for (int i = 0; i < 6; ++i) g.z_in[0].set(i, g.in[1].at(i / 3) * (g.z[0].at(i) + g.z[1].at(0)));
           }});
  Graph g;
  const Tensor x = g.input("x", {2, 3}, f64), k = g.input("k", {2}, i64);
  const auto out = op.all({x, k});
  const Tensor only_rows = gradients(sum(out[0]), {x})[0], only_sum = gradients(out[1], {x})[0];
  const auto v =
      eval({only_rows, only_sum}, {{x, std::vector<double>(6, 1.0)}, {k, std::vector<std::int64_t>{2, 5}}});
  EXPECT_EQ(v[0].values<double>(), (std::vector<double>{2, 2, 2, 5, 5, 5}));
  EXPECT_EQ(v[1].values<double>(), (std::vector<double>{2, 2, 2, 5, 5, 5}));
  for (const Node& n : g.nodes()) {
    if (n.op->name != "scaled_rows_backward") continue;
    for (const char* name : {"inputs", "outputs"})
      EXPECT_NE(n.attrs.text().find(name), std::string::npos) << n.attrs.text();
  }
}

}  // namespace
