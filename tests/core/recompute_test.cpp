// CompileOptions::memory_budget: what is cheap is computed again instead of being kept (core/compile/recompute.h).
#include "core/compile/recompute.h"

#include <gtest/gtest.h>

#include <tilegrad/tilegrad.h>
#include "core/compile/liveness.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;

constexpr std::int64_t n = 64;  // a matrix of f32 has 16 KiB
constexpr std::size_t matrix = n * n * 4;

// A chain of products, forth and back, as in training: f(hᵢ) is used by the next product and, much later, by another.
struct Chain {
  Graph g;
  Tensor x = g.input("x", {n, n});
  Tensor loss;
  explicit Chain(const std::function<Tensor(const Tensor&)>& f, int layers = 6) {
    Tensor h = x;
    std::vector<Tensor> hs, fs;
    for (int i = 0; i < layers; ++i) {
      fs.push_back(f(h));
      h = matmul(fs.back(), x) * 0.01;
      hs.push_back(h);
    }
    Tensor z = h;
    for (int i = layers; i-- > 0;) z = matmul(z, fs[static_cast<std::size_t>(i)]) * 0.01 + hs[static_cast<std::size_t>(i)];
    loss = sum(z * z);
  }
  Program compiled(std::size_t budget, bool verify = false) {
    return compile(g, {loss}, {.threads = 1, .memory_budget = budget, .verify = verify});
  }
  Array run(Program program) {
    std::vector<float> numbers(static_cast<std::size_t>(n * n));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 17) / 17 - 0.4f;
    program.run({{x, numbers}});
    return program.fetch(loss);
  }
  int count(const Program& program, const std::string& what) const {
    int all = 0;
    for (const Step& s : program.steps()) all += s.name.find(what) != std::string::npos;
    return all;
  }
};

const auto gelu_of = [](const Tensor& h) { return gelu(h); };

TEST(Recompute, DoesNothingWithoutABudgetOrWithinIt) {
  Chain chain(gelu_of);
  const Program free = chain.compiled(0);
  const std::size_t peak = free.memory().peak();
  EXPECT_EQ(free.memory().recomputed.steps, 0);
  const Program same = chain.compiled(peak);
  EXPECT_EQ(same.memory().recomputed.steps, 0);
  EXPECT_EQ(same.memory().recomputed.saved, 0u);
  EXPECT_EQ(same.text(), free.text());
}

TEST(Recompute, KeepsTheBudgetWithTheSameBitsAndNoProductTwice) {
  for (const auto& f : {std::function<Tensor(const Tensor&)>(gelu_of), std::function<Tensor(const Tensor&)>([](const Tensor& h) {
         return layer_norm(h, h.graph().input("w", {n}), h.graph().input("b", {n}));
       })}) {
    Chain chain([](const Tensor& h) { return gelu(h); });
    const Program free = chain.compiled(0);
    const Array expected = chain.run(free);
    const std::size_t peak = free.memory().peak();
    int before = 0;
    for (int saved = 1; saved <= 5; ++saved) {
      const std::size_t budget = peak - static_cast<std::size_t>(saved) * matrix;
      const Program program = chain.compiled(budget, true);
      EXPECT_LE(program.memory().peak(), budget);
      EXPECT_EQ(program.memory().recomputed.steps, saved) << "as few as it takes";
      EXPECT_EQ(program.memory().recomputed.moved, saved * 2.0 * matrix);
      EXPECT_EQ(program.memory().recomputed.saved, free.memory().arena - program.memory().arena);
      EXPECT_EQ(chain.count(program, "matmul"), chain.count(free, "matmul"));
      EXPECT_EQ(chain.count(program, "again"), saved);
      EXPECT_TRUE(chain.run(program).same_bits(expected));
      EXPECT_GE(program.memory().recomputed.steps, before);
      before = program.memory().recomputed.steps;
    }
    (void)f;
  }
}

TEST(Recompute, SaysTheLeastThatItCanReach) {
  Chain chain(gelu_of);
  const std::string error = error_of([&] { chain.compiled(matrix); });
  EXPECT_NE(error.find("the program needs at least"), std::string::npos) << error;
  EXPECT_NE(error.find("memory_budget is 1 MiB"), std::string::npos) << error;
  EXPECT_THROW(chain.compiled(matrix), OutOfMemory);
}

TEST(Recompute, RepeatsNoProductAndNoAttention) {
  Graph g;
  const Tensor x = g.input("x", {1, 1, n, n});
  const Tensor a = matmul(x, x), b = flash_attn(x, x, x, {}).o;
  Tensor y = matmul(a, b);
  for (int i = 0; i < 3; ++i) y = matmul(y, x);
  const Tensor loss = sum(matmul(y, a) * b);
  const std::size_t peak = compile(g, {loss}).memory().peak();
  EXPECT_THROW(compile(g, {loss}, {.memory_budget = peak - matrix}), OutOfMemory);
}

// w is assigned between the uses of its cast: the second use must not see the new value.
TEST(Recompute, ReadsAParameterOnlyBeforeItChanges) {
  Graph g;
  Parameter w("w", Array(Shape{n, n}, f32));
  const Tensor x = g.input("x", {n, n}), old = g.param(w);
  const Tensor half = gelu(old * 2.0);
  const Tensor next = old + matmul(half, x);
  Tensor y = next;
  for (int i = 0; i < 4; ++i) y = matmul(concat({y, y}, 0), x);
  Tensor z = matmul(y, matmul(transpose(y, 0, 1), half.shape() == Shape{n, n} ? concat({half}, 0) : half));
  for (const std::size_t saved : {matrix, 2 * matrix}) {
    std::vector<Array> results;
    for (const bool limited : {false, true}) {
      Array start({n, n}, f32);
      for (std::int64_t i = 0; i < start.numel(); ++i) start.set(i, static_cast<double>(i % 13) - 6);
      w.write(start);
      std::vector<float> numbers(static_cast<std::size_t>(n * n), 0.03f);
      const std::size_t peak = compile(g, {z}, {.assign = {{w, next}}}).memory().peak();
      try {
        Program program = compile(g, {z}, {.assign = {{w, next}}, .memory_budget = limited ? peak - saved : 0});
        program.run({{x, numbers}});
        results.push_back(program.fetch(z));
        results.push_back(w.read());
      } catch (const OutOfMemory&) {
      }
    }
    if (results.size() == 4) {
      EXPECT_TRUE(results[0].same_bits(results[2]));
      EXPECT_TRUE(results[1].same_bits(results[3]));
    }
  }
}

}  // namespace
