// Tests the search for the first node that computes a NaN or an infinity (core/report/bad_node.h).
#include <gtest/gtest.h>

#include <cmath>

#include <tilegrad/core/report/bad_node.h>
#include <tilegrad/tilegrad.h>
#include "tests/support/small_gpt.h"

namespace {

using namespace tg;
using namespace tg::testing;

TEST(BadNode, IsTheFirstToComputeItsNumberFromFiniteNumbers) {
  Graph g;
  const Tensor x = g.input("x", {2, 3});
  Tensor y;
  {
    const Scope scope("layer");
    y = log(x * 2);
  }
  sum(exp(y) + 1 / y);
  const std::vector<float> good{1, 2, 3, 4, 5, 6}, bad{1, 2, 3, 4, -5, 6}, zero{1, 2, 3, 0, 5, 6};
  EXPECT_EQ(first_bad_node(g, {{x, good}}, 0, 0), "");
  const std::string message = first_bad_node(g, {{x, bad}}, 0, 0);
  EXPECT_EQ(message.substr(0, message.find(" (bad_node_test.cpp")),
            "log (layer) made NaN at [1, 1] of f32 [2, 3] from finite numbers");
  EXPECT_EQ(first_bad_node(g, {{x, zero}}, 0, 0).substr(0, 41), "log (layer) made -infinity at [1, 0] of f");
}

TEST(BadNode, NamesANonFiniteInputOrParameter) {
  Graph g;
  Parameter w("block.w", Array::of<float>({2}, {1, NAN}));
  const Tensor x = g.input("x", {2});
  sum(x * g.param(w));
  const std::vector<float> one{1, 1}, bad{INFINITY, 1};
  EXPECT_EQ(first_bad_node(g, {{x, one}}, 0, 0), "block.w has NaN at [1] of f32 [2]");
  w.write(Array::of<float>({2}, {1, 1}));
  EXPECT_EQ(first_bad_node(g, {{x, one}}, 0, 0), "");
  EXPECT_NE(first_bad_node(g, {{x, bad}}, 0, 0).find("infinity at [0] of f32 [2]"), std::string::npos);
}

// A mask may contain −∞. A view only shows the values of another node.
TEST(BadNode, IsNeitherAViewNorAConstant) {
  Graph g;
  const Tensor x = g.input("x", {2, 2});
  for (const Tensor& mask :
       {g.constant(Array::of<float>({2, 2}, {0, -INFINITY, 0, 0})), full(g, {2, 2}, -INFINITY)})
    for (const Tensor& view : {mask, transpose(mask, 0, 1), expand(unsqueeze(mask, 0), {3, 2, 2}),
                               mask.view({4}), slice(mask, 0, 0, 1)})
      sum(exp(view));
  sum(x);
  const std::vector<float> good{1, 2, 3, 4}, bad{1, NAN, 3, 4};
  EXPECT_EQ(first_bad_node(g, {{x, good}}, 0, 0), "");
  const std::string message = first_bad_node(g, {{x, bad}}, 0, 0);
  EXPECT_EQ(message.substr(0, message.find(" from finite")), "input made NaN at [0, 1] of f32 [2, 2]");
}

TEST(BadNode, TrainingStepIsSkippedAndItsNodeFound) {
  for (const std::int64_t accumulate : {1, 2}) {
    nn::Params params;
    const nn::Model model(params, small_gpt());
    const optim::AdamW optimizer(params.all());
    train::TrainingProgram training(
        model, optimizer, {.batch = small_batch / accumulate, .threads = 1, .accumulate = accumulate});
    const SmallBatch b;
    EXPECT_EQ(training.first_bad_node(b.x, b.y, 0), "");
    Parameter weight = *params.find("transformer.h.1.mlp.c_fc.weight");  // GEMMs with these weights overflow
    weight.write(Array::of(weight.shape(),
                           std::vector<float>(static_cast<std::size_t>(numel(weight.shape())), 3e38f)));
    EXPECT_EQ(training.run(b.x, b.y, 1e-2).skipped, 1);
    const std::string message = training.first_bad_node(b.x, b.y, 0);
    EXPECT_EQ(message.substr(0, 39), "matmul (transformer.h.1.mlp.c_fc) made ") << message;
    EXPECT_NE(message.find("from finite numbers"), std::string::npos) << message;
  }
}

}  // namespace
