// Tests that a small GEMM moves next to the first reader of its result
// (backends/cuda/schedule/products_last.cpp).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <tilegrad/tilegrad.h>
#include "backends/cuda/schedule/scheduler.h"
#include "core/compile/buffers.h"

namespace {

using namespace tg;
using namespace tg::cuda;

std::vector<ValueId> results(const std::vector<LoweredStep>& steps) {
  std::vector<ValueId> all;
  for (const LoweredStep& s : steps) all.push_back(s.out[0]);
  return all;
}
std::vector<LoweredStep> lowered(const Graph& g, std::initializer_list<Tensor> outputs, Joined& joined) {
  std::vector<ValueId> ids;
  for (const Tensor& t : outputs) ids.push_back(t.id());
  std::vector<LoweredStep> steps = lower(g, ids, true);
  joined = join_in_place(g, steps, ids);
  return steps;
}

struct Case {
  Graph g;
  Joined joined;
  std::vector<LoweredStep> steps;
  // The program computes the gradients of two weights, with other gradients between them. A later step reads
  // the gradients of both weights.
  Case(DType t, std::int64_t n, bool is_parameter = false) {
    const Tensor x = g.input("x", {n, n}, t), y = g.input("y", {n, n}, t),
                 w = is_parameter ? g.param(Parameter("w", Array({n, n}, t))) : x, first = matmul(w, y),
                 next = softmax(matmul(x, y), -1), second = matmul(next, x), last = softmax(next, 0);
    steps = lowered(g, {squared_norm({first, second}), last}, joined);
  }
};

TEST(ProductsLast, MovesProductsThatAreReadLater) {
  Case c(bf16, 16);
  const std::vector<ValueId> before = results(c.steps);
  ASSERT_EQ(c.steps.size(), 6u);  // recorded order: first, x·y, softmax, second, softmax, squared_norm
  EXPECT_TRUE(products_last(c.g, c.steps, c.joined));
  const std::vector<ValueId> after = results(c.steps);
  EXPECT_EQ(after, (std::vector{before[1], before[2], before[4], before[0], before[3], before[5]}));
  EXPECT_TRUE(c.steps[3].with_next);
  EXPECT_FALSE(c.steps[4].with_next);
}

TEST(ProductsLast, OtherProductsStay) {
  for (const auto& [t, n, parameter] : {std::tuple{f32, 16, false}, {bf16, 264, false}, {bf16, 16, true}}) {
    Case c(t, n, parameter);
    const std::vector<ValueId> before = results(c.steps);
    EXPECT_FALSE(products_last(c.g, c.steps, c.joined)) << name_of(t) << " " << n;
    EXPECT_EQ(results(c.steps), before);
  }
}

// If a GEMM writes directly into the result of a concat, later steps read the concat instead of the GEMM.
TEST(ProductsLast, JoinedProductsStay) {
  Graph g;
  const Tensor x = g.input("x", {16, 16}, bf16), a = matmul(x, x),
               y = softmax(concat({a, matmul(x, transpose(x, 0, 1))}, 0), -1), b = matmul(x, softmax(x, 0));
  Joined joined;
  std::vector<LoweredStep> steps = lowered(g, {y, b}, joined);
  ASSERT_TRUE(joined.contains(a.id()));
  EXPECT_FALSE(products_last(g, steps, joined));
}

// No GEMM may overwrite an operand that another GEMM still reads.
TEST(ProductsLast, OperandsLiveUntilTheLastProduct) {
  Case c(bf16, 16);
  ASSERT_TRUE(products_last(c.g, c.steps, c.joined));
  Outputs outputs;
  const Buffers b = buffers_of(c.g, c.steps, c.joined, outputs, {}, {});
  for (const ValueId v : {c.steps[3].in[1], c.steps[4].in[0]})
    EXPECT_GE(b.list[static_cast<std::size_t>(b.of[c.g.values()[v].root])].last, 4);
}

}  // namespace
