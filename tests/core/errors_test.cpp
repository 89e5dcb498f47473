// Tests the error messages of recording, differentiating and reading. A message contains the layer, the op,
// shapes, relevant attributes and the line.
#include <gtest/gtest.h>

#include <tilegrad/tilegrad.h>
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using tg::testing::expect_error;

std::string line(unsigned n) {
  return "(errors_test.cpp:" + std::to_string(n) + ")";
}

template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "(nothing thrown)";
}

struct Errors : ::testing::Test {
  Graph g;
  Tensor a = g.input("a", {4, 8}), b = g.input("b", {9, 3});
};

TEST_F(Errors, NameTheLayerAndTheOp) {
  const Scope layer("h.3");
  const Scope attention("attn");
  const unsigned scope_line = __LINE__ - 2;  // line of the outermost scope, which is the user's call
  EXPECT_EQ(message_of([&] { matmul(a, b); }),
            "[h.3.attn/matmul] inner sizes differ: a [4, 8] · b [9, 3]; got f32 [4, 8], f32 [9, 3] " +
                line(scope_line));
  // A builder, a layout and a shape rule report these errors.
  expect_error<ShapeError>([&] { a + b; }, {"[h.3.attn/add] ", "[4, 8] with [9, 3]", line(scope_line)});
  expect_error<ShapeError>([&] { a.view({5}); }, {"[h.3.attn/view] ", "f32 [4, 8]", line(scope_line)});
  expect_error<ShapeError>([&] { top_k(a, 9); }, {"[h.3.attn/top_k] k is 9", line(scope_line)});
  expect_error<ShapeError>([&] { a.sum({2}); }, {"[h.3.attn/sum] ", line(scope_line)});
  Graph other;
  expect_error<Error>([&] { a + other.input("x", {8}); },
                      {"[h.3.attn/add] the tensors belong to different graphs", line(scope_line)});
  expect_error<Error>([&] { concat({}, 0); }, {"[h.3.attn/concat] got no tensors", line(scope_line)});
}

TEST_F(Errors, OmitAttributesAtTheirDefaults) {
  const std::string plain = message_of([&] { flash_attn(a, a, a); });
  for (const char* absent : {"=", "with", "softcap", "stream"})
    EXPECT_EQ(plain.find(absent), std::string::npos) << plain;
  const std::string causal = message_of([&] { flash_attn(a, a, a, {.causal = true, .softcap = 30}); });
  EXPECT_NE(causal.find(" with causal=true, softcap=30 " + line(__LINE__ - 1)), std::string::npos) << causal;
}

struct Three {
  int axis;
  bool keep;
  double internal;
  void fields(auto&& field) const {
    field("axis", axis), field("keep", keep, false), field("internal", internal, internal);
  }
};

TEST(Attrs, LongFormHasAllFieldsAndShortFormOmitsDefaults) {
  EXPECT_EQ(Attrs(Three{0, false, 2}).text(), "axis=0, keep=false, internal=2");
  EXPECT_EQ(Attrs(Three{0, false, 2}).non_default_text(), "axis=0");
  EXPECT_EQ(Attrs(Three{1, true, 3}).non_default_text(), "axis=1, keep=true");
  EXPECT_EQ(Attrs().non_default_text(), "");
}

TEST_F(Errors, GradientErrorsNameTheLayerAndTheOp) {
  const Op opaque{.name = "round",
                  .infer =
                      [](std::span<const Operand> in, const Attrs&) {
                        return std::vector<OutSpec>{{in[0].dtype, in[0].layout}};
                      },
                  .not_differentiable = "it is a step function"};
  Tensor y;
  const unsigned scope_line = __LINE__ + 2;
  {
    const Scope layer("h.3.router");
    y = record(opaque, {a});
  }
  expect_error<GradientError>(
      [&] { gradients(sum(y), {a}); },
      {"[h.3.router/round] the gradient cannot pass: it is a step function", line(scope_line)});
  expect_error<GradientError>([&] { gradients(y, {a}); },
                              {"[gradients] the loss h.3.router/round is f32 [4, 8]"});
  const Tensor i = g.input("i", {3}, i32), loss = sum(a);
  expect_error<GradientError>([&] { gradients(loss, {a, i}); }, {"tensor 1 to differentiate by is i32 [3]"});
  expect_error<GradientError>([&] { gradients(loss, {Tensor()}); },
                              {"tensor 0 to differentiate by is undefined"});
  Graph other;
  const Tensor x = other.input("x", {2});
  expect_error<GradientError>([&] { gradients(loss, {x}); }, {"is of a different graph", "errors_test.cpp"});
}

TEST_F(Errors, FetchErrorsNameTheTensor) {
  Tensor y;
  {
    const Scope layer("h.3.mlp");
    y = gelu(a);
  }
  const Program p = compile(g, {y * 2});
  expect_error<Error>([&] { p.fetch(y); },
                      {"[fetch] h.3.mlp/gelu f32 [4, 8] (errors_test.cpp:", "not among"});
  expect_error<Error>([&] { p.fetch(Tensor()); }, {"[fetch] this tensor"});
}

}  // namespace
