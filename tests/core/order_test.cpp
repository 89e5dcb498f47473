// Tests CompileOptions::memory_budget. If a different order of steps saves enough memory, nothing is
// recomputed (core/compile/order.cpp).
#include "core/compile/budget.h"

#include <gtest/gtest.h>

#include <tilegrad/ops/linear_cross_entropy.h>
#include <tilegrad/tilegrad.h>
#include "backends/cuda/schedule/scheduler.h"
#include "core/compile/lower.h"

namespace {

using namespace tg;

const StepScheduler plain;
const cuda::CudaScheduler gpu;
const StepScheduler* const schedulers[] = {&plain, &gpu};

constexpr std::int64_t n = 64;  // a matrix of f32 has 16 KiB
constexpr std::size_t matrix = n * n * 4;

std::vector<float> numbers(std::size_t count, int step) {
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i)
    x[i] = static_cast<float>(static_cast<int>(i) * step % 17) / 136 - 0.05f;
  return x;
}

// Compiles a program twice: without a budget, and with a budget that is `less` bytes below the peak.
struct Both {
  Program free, limited;
  Both(Graph& g, const std::vector<Tensor>& fetch, std::size_t less, const std::vector<Assign>& assign = {})
      : free(compile(g, fetch, {.assign = assign, .threads = 1})),
        limited(compile(
            g, fetch,
            {.assign = assign, .threads = 1, .memory_budget = free.memory().peak() - less, .verify = true})) {
  }

  // Expects that the peak decreases by exactly `less` and that nothing is recomputed.
  void expect_saved(std::size_t less) const {
    EXPECT_EQ(free.memory().peak() - limited.memory().peak(), less);
    EXPECT_EQ(limited.memory().recomputed.saved, less);
    EXPECT_EQ(limited.memory().recomputed.steps, 0);
  }
};

// If each GEMM result is added directly after its computation, one result is alive at a time instead of four.
TEST(Order, ReadsALargeValueBeforeTheNextIsComputed) {
  Graph g;
  const Tensor x = g.input("x", {n, n});
  std::vector<Tensor> products, sums;
  for (int i = 0; i < 4; ++i) products.push_back(matmul(x, x * (i + 1)));
  for (const Tensor& p : products) sums.push_back(sum(p));
  Both both(g, sums, 2 * matrix);
  both.expect_saved(3 * matrix);
}

// A value with few readers can be freed early. Here, twenty steps read a matrix. Each step reads it twice, as
// queries and as values, but counts as one reader.
TEST(Order, CountsEachReaderOnce) {
  Graph g;
  const Tensor x = g.input("x", {n, n}), keys = g.input("keys", {1, 1, n, n});
  std::vector<Tensor> products, results;
  for (int i = 0; i < 3; ++i) products.push_back(matmul(x, x * (i + 1)).view({1, 1, n, n}));
  for (const Tensor& p : products)
    for (std::int64_t row = 0; row < 20; ++row)
      results.push_back(flash_attn(slice(p, 2, row, row + 1), keys, p).o);
  Both both(g, results, matrix);
  both.expect_saved(2 * matrix);
}

// In the backward pass of an MLP, the gradient of the second weight reads a large value. The second GEMM's
// input gradient has the same size.
TEST(Order, RunsAWeightsGradientBeforeItsInputs) {
  Graph g;
  const std::int64_t rows = 8 * n;
  const Tensor x = g.input("x", {rows, n}), up = g.input("up", {n, 4 * n}),
               down = g.input("down", {4 * n, n}), z = g.input("z", {rows, n});
  const Tensor h = matmul(x, up), z_h = matmul(z, transpose(down, 0, 1)),
               z_down = matmul(transpose(h, 0, 1), z);
  const std::size_t large = 32 * matrix;
  Both both(g, {sum(z_h), sum(z_down)}, large / 2);
  both.expect_saved(large);
}

// The parameter's new value frees a matrix. But the step that computes it must wait for the last reader of
// the old value.
TEST(Order, ChangesAParameterAfterItWasRead) {
  Graph g;
  Parameter w("w", Array(Shape{n, n}, f32));
  const Tensor x = g.input("x", {n, n}), old = g.param(w);
  const Tensor h = matmul(x, x), later = sum(matmul(x, x * 2)), read = sum(old);
  Both both(g, {later, read}, matrix / 2, {{w, old * 0.5 + h}});
  both.expect_saved(matrix);
  const auto run = [&](Program program) {
    w.write(Array::of({n, n}, numbers(n * n, 5)));
    program.run({{x, numbers(n * n, 3)}});
    return std::pair(program.fetch(read), w.read());
  };
  const auto expected = run(both.free), got = run(both.limited);
  EXPECT_TRUE(got.first.same_bits(expected.first));
  EXPECT_TRUE(got.second.same_bits(expected.second));
}

// A head computes losses and gradients in four chunks. Only the logits of one chunk are alive at a time. The
// mean loss is known after the last chunk. The weight of the rows in the mean is known before the first
// chunk.
TEST(Order, RunsChunksOfLogitsOneAfterTheOther) {
  const std::int64_t rows = 256, classes = 1024, width = 8;
  const std::size_t logits = 64 * classes * 4;  // bytes of one chunk
  Graph g;
  const Tensor x = g.input("x", {rows, width}), w = g.input("w", {width, classes}),
               t = g.input("t", {rows}, i32);
  const Tensor loss = linear_cross_entropy(x, w, t, {.ignore_index = 5, .chunk_rows = 64, .unit_rows = 64});
  const std::vector<Tensor> z = gradients(loss, {x, w});
  constexpr std::size_t numbers_of_rows = 4096;
  Both both(g, {loss, z[0], z[1]}, 3 * logits - numbers_of_rows);
  const std::size_t saved = both.limited.memory().recomputed.saved;
  EXPECT_GE(saved, 3 * logits - numbers_of_rows);
  EXPECT_LE(saved, 3 * logits + numbers_of_rows);
  EXPECT_EQ(both.limited.memory().recomputed.steps, 0);
  std::vector<std::int32_t> targets(rows);
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<std::int32_t>(i % 7);
  for (Program* p : {&both.free, &both.limited})
    p->run({{x, numbers(rows * width, 3)}, {w, numbers(width * classes, 5)}, {t, targets}});
  for (const Tensor& result : {loss, z[0], z[1]})
    EXPECT_TRUE(both.limited.fetch(result).same_bits(both.free.fetch(result)));
}

// A different order would put gelu_tanh directly after its GEMM. A backend with epilogues would then compute
// gelu_tanh from unrounded numbers. So this order is not used.
TEST(Order, MakesNoNewEpilogues) {
  for (const StepScheduler* scheduler : schedulers) {
    const bool has_epilogues = scheduler->has_epilogues();
    Graph g;
    const Tensor x = g.input("x", {n, n});
    const Tensor large = matmul(x, x), p = matmul(x, x * 2), s = sum(large), y = gelu_tanh(p);
    const Tensor next = matmul(x, x * 3);
    const Outputs outputs = outputs_of(g, {s, sum(y), sum(next)}, {});
    std::vector<LoweredStep> steps = lower(g, outputs.all(), true);
    const Joined joined = join_in_place(g, steps, outputs.all());
    const std::vector<Assign> none;
    const std::vector<bool> directly;
    EXPECT_EQ(order_for_memory(g, steps, {joined, outputs, none, directly, *scheduler}), !has_epilogues);
  }
}

}  // namespace
