// Tests CompileOptions::memory_budget. Values are recomputed instead of being kept
// (core/compile/recompute.cpp). GEMMs are recomputed only if recomputing cheap values does not save enough
// memory.
#include "core/compile/budget.h"

#include <gtest/gtest.h>

#include <tilegrad/core/run/cost.h>
#include <tilegrad/tilegrad.h>
#include "backends/cuda/schedule/scheduler.h"
#include "core/compile/buffers.h"
#include "core/compile/passes.h"
#include "core/compile/scheduler.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;

const StepScheduler plain;
const cuda::CudaScheduler gpu;
const StepScheduler* const schedulers[] = {&plain, &gpu};

constexpr std::int64_t n = 64;  // a matrix of f32 has 16 KiB
constexpr std::size_t matrix = n * n * 4;

// Computes GEMMs forward and backward, as in training. f(h) is an operand of the next GEMM. Much later, it is
// also an operand of a backward GEMM.
struct Chain {
  using Function = std::function<Tensor(const Tensor&)>;
  Graph g;
  Tensor x = g.input("x", {n, n});
  Tensor loss;

  explicit Chain(const Function& f, int layers = 6) {
    Tensor h = x;
    std::vector<Tensor> hs, fs;
    for (int i = 0; i < layers; ++i) {
      fs.push_back(f(h));
      hs.push_back(h);
      h = matmul(fs.back(), x);
    }
    Tensor z = h;
    for (std::size_t i = fs.size(); i-- > 0;) z = matmul(matmul(z, fs[i]), hs[i]);
    loss = sum(z);
  }

  Program compiled(std::size_t budget, bool verify = false) {
    return compile(g, {loss}, {.threads = 1, .memory_budget = budget, .verify = verify});
  }
  Array run(Program program) const {
    std::vector<float> numbers(static_cast<std::size_t>(n * n));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 17) / 136 - 0.05f;
    program.run({{x, numbers}});
    return program.fetch(loss);
  }
};

int count(const Program& program, const std::string& what) {
  int all = 0;
  for (const Step& s : program.steps()) all += s.name.find(what) != std::string::npos;
  return all;
}

const Chain::Function gelu_of = [](const Tensor&h) { return gelu(h); },
                      norm_of = [](const Tensor&h) { return layer_norm(h); };

TEST(Recompute, DoesNothingWithoutABudgetOrWithinIt) {
  Chain chain(gelu_of);
  const Program free = chain.compiled(0), same = chain.compiled(free.memory().peak());
  EXPECT_EQ(free.memory().recomputed.steps, 0);
  EXPECT_EQ(same.memory().recomputed.steps, 0);
  EXPECT_EQ(same.memory().recomputed.saved, 0u);
  EXPECT_EQ(same.text(), free.text());
}

TEST(Recompute, MeetsTheBudgetWithBitwiseEqualResultsAndNoRepeatedProduct) {
  for (const Chain::Function& f : {gelu_of, norm_of}) {
    Chain chain(f);
    const Program free = chain.compiled(0);
    const Array expected = chain.run(free);
    for (int saved = 1; saved <= 4; ++saved) {
      const std::size_t budget = free.memory().peak() - static_cast<std::size_t>(saved) * matrix;
      const Program program = chain.compiled(budget, true);
      const MemoryReport::Recomputed again = program.memory().recomputed;
      EXPECT_LE(program.memory().peak(), budget);
      EXPECT_EQ(again.steps, saved) << "no more than needed";
      EXPECT_EQ(again.products, 0);
      EXPECT_GE(again.price, again.moved);
      EXPECT_EQ(again.saved, free.memory().arena - program.memory().arena);
      EXPECT_GE(again.moved, saved * 2.0 * matrix);
      EXPECT_LE(again.moved, saved * 2.1 * matrix);
      EXPECT_EQ(count(program, "matmul"), count(free, "matmul"));
      EXPECT_EQ(count(program, "again"), saved);
      EXPECT_TRUE(chain.run(program).same_bits(expected));
    }
  }
}

TEST(Recompute, ReportsTheMinimumThatItCanReach) {
  Chain chain(gelu_of);
  const std::string error = error_of([&] { chain.compiled(matrix); });
  EXPECT_NE(error.find("[compile] the program needs at least "), std::string::npos) << error;
  EXPECT_NE(error.find("recomputed"), std::string::npos) << error;
  EXPECT_THROW(chain.compiled(matrix), OutOfMemory);
}

// The parameters, the inputs and the kernels' workspace may exceed the budget. The reported minimum does not
// change.
TEST(Recompute, SmallerBudgetsHaveTheSameMinimum) {
  Chain chain(gelu_of);
  const auto least = [&](std::size_t budget) -> std::size_t {
    try {
      chain.compiled(budget);
    } catch (const BudgetTooSmall& e) {
      return e.least;
    }
    return 0;
  };
  const MemoryReport free = chain.compiled(0).memory();
  const std::size_t others = free.peak() - free.arena, expected = least(others);
  EXPECT_GT(expected, others + matrix);
  EXPECT_LT(expected, free.peak());
  for (const std::size_t budget : {std::size_t{1}, others - 1, others + 1, others + matrix})
    EXPECT_EQ(least(budget), expected) << budget;
  EXPECT_EQ(chain.compiled(expected).memory().peak(), expected);
}

TEST(Recompute, ProgramsWithoutStepsSaveNothing) {
  Graph g;
  const Tensor x = g.input("x", {n, n});
  try {
    compile(g, {x}, {.threads = 1, .memory_budget = 1});
    ADD_FAILURE();
  } catch (const BudgetTooSmall& e) {
    EXPECT_EQ(e.least, matrix);
  }
}

// A step between a GEMM and a gelu_tanh has a value that is used late. This step must not move. If it moved,
// a GPU would fuse the GEMM and the gelu_tanh, with different results. All other gelu_tanh steps also stay
// separate or fused.
TEST(Recompute, MovesNothingFromBetweenAProductAndItsGelu) {
  for (const StepScheduler* scheduler : schedulers) {
    const bool has_epilogues = scheduler->has_epilogues();
    Graph g;
    const Tensor x = g.input("x", {n, n}, bf16), tall = g.input("tall", {4 * n, n}, bf16);
    const Tensor product = matmul(x, x), late = exp(x), activated = gelu_tanh(product);
    const Tensor wide = matmul(activated, matmul(tall, activated).view({n, 4 * n}));
    const Tensor y = matmul(matmul(wide, tall), late);
    const Tensor small = g.input("small", {2, 2}, bf16), alone = gelu_tanh(small),
                 together = gelu_tanh(matmul(small, small));
    const std::vector<Assign> assign;
    const Outputs outputs = outputs_of(g, {y, alone, together}, assign);
    std::vector<LoweredStep> steps = lower(g, outputs.all(), true);
    const Joined joined = join_in_place(g, steps, outputs.all());
    const std::vector<bool> directly;
    const Scheduled known{joined, outputs, assign, directly, *scheduler};
    ASSERT_FALSE(is_epilogue(steps[0], steps[1]));
    ASSERT_TRUE(may_be_epilogue(steps[2]));
    const std::size_t all = recompute_within(~std::size_t{0}, g, steps, known).arena;
    const Recomputed r = recompute_within(all - 1, g, steps, known);
    EXPECT_EQ(is_epilogue(steps[0], steps[1]), !has_epilogues);
    EXPECT_EQ(r.arena < all, !has_epilogues);
    EXPECT_EQ(r.again.steps, 0);
  }
}

TEST(Recompute, CountsFlopsAsCopiedBytes) {
  EXPECT_EQ(price_of({.flops = 320, .bytes = 1}, bf16), 2);
  EXPECT_EQ(price_of({.flops = 320, .bytes = 1}, f32), 20);
  EXPECT_EQ(price_of({.flops = 320, .bytes = 100}, f32), 100);
}

TEST(Recompute, RepeatsAsFewProductsAsNeededAndAttentionLast) {
  for (const Chain::Function& f :
       {Chain::Function([](const Tensor& h) { return matmul(h, h); }), Chain::Function([](const Tensor& h) {
          const Tensor q = h.view({1, 1, n, n});
          return flash_attn(q, q, q).o.view({n, n});
        })}) {
    Chain chain(f);
    const Program free = chain.compiled(0);
    const Array expected = chain.run(free);
    for (int saved = 1; saved <= 7; ++saved) {
      const std::size_t budget = free.memory().peak() - static_cast<std::size_t>(saved) * matrix;
      const Program program = chain.compiled(budget, true);
      const MemoryReport::Recomputed again = program.memory().recomputed;
      EXPECT_LE(program.memory().peak(), budget);
      EXPECT_TRUE(chain.run(program).same_bits(expected));
      EXPECT_EQ(count(program, "again"), again.steps);
      EXPECT_EQ(again.products, again.steps);
      EXPECT_GE(again.flops, again.products * 2.0 * n * n * n);
      if (saved <= 4) {
        EXPECT_EQ(again.products, saved);
        EXPECT_EQ(count(program, "attn"), count(free, "attn"));
      }
    }
    EXPECT_THROW(chain.compiled(matrix), OutOfMemory);
  }
  Chain chain([](const Tensor& h) {
    const Tensor q = h.view({1, 1, n, n});
    return flash_attn(q, q, q).o.view({n, n});
  });
  const Program free = chain.compiled(0), program = chain.compiled(free.memory().peak() - 7 * matrix);
  EXPECT_GT(count(program, "attn"), count(free, "attn"));
}

// An outer product costs less than gelu. Still, it is recomputed only if recomputing cheap values does not
// save enough memory.
TEST(Recompute, RepeatsNoProductIfCheapValuesSuffice) {
  Graph g;
  const Tensor x = g.input("x", {n, n}), column = g.input("column", {n, 1}), row = g.input("row", {1, n});
  const Tensor outer = matmul(column, row), h = matmul(outer, x), f = gelu(h);
  Tensor z = matmul(f, x);
  std::vector<Tensor> kept;
  for (int i = 0; i < 4; ++i) kept.push_back(z = matmul(z, x));
  for (std::size_t i = kept.size(); i-- > 0;) z = matmul(z, kept[i]);
  z = matmul(matmul(matmul(z, f), h), outer);
  const auto again = [&](std::size_t less) {
    const std::size_t peak = compile(g, {z}, {.threads = 1}).memory().peak();
    return compile(g, {z}, {.threads = 1, .memory_budget = peak - less * matrix}).memory().recomputed;
  };
  EXPECT_EQ(again(1).steps, 1);
  EXPECT_EQ(again(1).products, 0);
  EXPECT_EQ(again(2).products, 1);
}

// A GEMM and the gradient of its weight read the same norm. The norm is recomputed once for both of them,
// before the GEMM.
TEST(Recompute, RepeatsANormOnceForAProductAndALaterReader) {
  Graph g;
  const Tensor x = g.input("x", {n, n});
  std::vector<Tensor> h{matmul(x, x)}, norm, product;
  for (int i = 0; i < 6; ++i) {
    norm.push_back(layer_norm(h.back()));
    product.push_back(matmul(norm.back().view({2, n / 2, n}), x).view({n, n}));
    h.push_back(matmul(gelu(product.back()), x));
  }
  Tensor z = h.back();
  for (std::size_t i = norm.size(); i-- > 0;)
    z = matmul(matmul(matmul(matmul(z, gelu_slope(product[i])), x), norm[i]), h[i]);
  const auto compiled = [&](std::size_t budget) {
    return compile(g, {z}, {.threads = 1, .memory_budget = budget, .verify = budget > 0});
  };
  const auto run = [&](Program program) {
    std::vector<float> numbers(static_cast<std::size_t>(n * n));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 19) / 150 - 0.05f;
    program.run({{x, numbers}});
    return program.fetch(z);
  };
  const Program free = compiled(0);
  for (const int products : {1, 2, 3}) {
    const std::size_t budget = free.memory().peak() - static_cast<std::size_t>(6 + products) * matrix;
    const Program program = compiled(budget);
    EXPECT_LE(program.memory().peak(), budget);
    EXPECT_EQ(program.memory().recomputed.products, products);
    EXPECT_EQ(program.memory().recomputed.steps, 6 + products);
    EXPECT_TRUE(run(program).same_bits(run(free)));
  }
}

// A GPU may fuse an elementwise step with the next GEMM. If the step is recomputed, it must be directly
// before this GEMM, even if an earlier position is possible. This rule also applies at the end of the
// program.
TEST(Recompute, LeavesAnElementwiseStepBeforeItsProduct) {
  for (const bool is_last : {false, true}) {
    Graph g;
    const Tensor x = g.input("x", {n, n}), tall = g.input("tall", {2 * n, n});
    const Tensor chain = exp(tall), norm = layer_norm(slice(chain, 0, 0, n));
    Tensor z = matmul(norm, x);
    std::vector<Tensor> kept;
    for (int i = 0; i < 5; ++i) kept.push_back(z = matmul(z, x));
    for (std::size_t i = kept.size(); i-- > 0;) z = matmul(z, kept[i]);
    const Tensor product = matmul(chain, matmul(z, norm));
    const std::vector<Assign> assign;
    const Outputs outputs = outputs_of(g, {is_last ? product : matmul(product, x)}, assign);
    std::vector<LoweredStep> steps = lower(g, outputs.all(), true);
    const Joined joined = join_in_place(g, steps, outputs.all());
    const std::vector<bool> directly;
    const Scheduled known{joined, outputs, assign, directly, gpu};
    const std::size_t all = recompute_within(~std::size_t{0}, g, steps, known).arena;
    const Recomputed r = recompute_within(all - 3 * matrix, g, steps, known);
    EXPECT_LE(r.arena, all - 3 * matrix);
    EXPECT_EQ(r.again.products, 0);
    const std::size_t at = steps.size() - (is_last ? 1 : 2);
    EXPECT_TRUE(belong_together(g, steps[at - 1], steps[at])) << steps[at - 1].op->name;
  }
}

// On a GPU, a 16-bit GEMM includes gelu_tanh if gelu_tanh directly follows it. A separate gelu_tanh rounds
// differently.
TEST(Recompute, RepeatsAProductWithItsEpilogue) {
  Graph g;
  const Tensor x = g.input("x", {n, n}, bf16);
  std::vector<Tensor> h{exp(x)}, product, f;
  for (int i = 0; i < 6; ++i) {
    product.push_back(matmul(h.back(), x));
    f.push_back(gelu_tanh(product.back()));
    h.push_back(matmul(f.back(), x));
  }
  Tensor z = h.back();
  for (std::size_t i = f.size(); i-- > 0;) {
    z = matmul(matmul(z, f[i]), product[i]);
    if (i > 0) z = matmul(z, h[i]);  // the buffer of h[0] is free after the first GEMM
  }
  const std::vector<Assign> assign;
  const Outputs outputs = outputs_of(g, {z}, assign);
  std::vector<LoweredStep> steps = lower(g, outputs.all(), true);
  const Joined joined = join_in_place(g, steps, outputs.all());
  merge_fused(g, steps, outputs.all());
  const std::vector<bool> directly;
  const auto alive_to = [&](ValueId v) {
    const Buffers buffers = buffers_of(g, steps, joined, outputs, assign, directly);
    return buffers.list[static_cast<std::size_t>(buffers.of[v])].last;
  };
  ASSERT_TRUE(is_epilogue(steps[1], steps[2]));
  EXPECT_EQ(alive_to(steps[1].in[0]), 2)
      << "otherwise gelu_tanh may overwrite it, and must be a separate step";
  const std::size_t all =
      recompute_within(~std::size_t{0}, g, steps, {joined, outputs, assign, directly, gpu}).arena;
  const Recomputed r = recompute_within(all - 2 * matrix, g, steps, {joined, outputs, assign, directly, gpu});
  EXPECT_LE(r.arena, all - 2 * matrix);
  EXPECT_EQ(r.again.products, 2);
  EXPECT_EQ(r.again.steps, 4);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    if (may_be_epilogue(steps[s])) {
      EXPECT_TRUE(belong_together(g, steps[s - 1], steps[s])) << s;
    }
  }
}

// The cast of a weight is used early and late. It can be recomputed only until the weight changes.
TEST(Recompute, ReadsAParameterOnlyBeforeItChanges) {
  for (const bool changes_early : {false, true}) {
    Graph g;
    Parameter w("w", Array(Shape{n, n}, f32));
    const Tensor x = g.input("x", {n, n}), old = g.param(w), cast = gelu(old);
    const Tensor early = matmul(cast, x), after_early = old + early;
    std::vector<Tensor> kept{early};
    for (int i = 0; i < 4; ++i) kept.push_back(matmul(kept.back(), x));
    Tensor late = x;
    for (std::size_t i = kept.size(); i-- > 0;) late = matmul(late, kept[i]);
    late = matmul(late, cast);
    const std::vector<Assign> assign{{w, changes_early ? after_early : old + late}};
    const auto compiled = [&](std::size_t budget) {
      return compile(g, {late}, {.assign = assign, .threads = 1, .memory_budget = budget});
    };
    const auto run = [&](Program program) {
      Array start({n, n}, f32);
      for (std::int64_t i = 0; i < start.numel(); ++i) start.set(i, static_cast<double>(i % 13) / 8);
      w.write(start);
      program.run({{x, std::vector<float>(static_cast<std::size_t>(n * n), 0.03f)}});
      return std::pair(program.fetch(late), w.read());
    };
    const std::size_t budget = compiled(0).memory().peak() - matrix;
    const auto expected = run(compiled(0)), got = run(compiled(budget));
    EXPECT_EQ(compiled(budget).memory().recomputed.steps, 1);
    EXPECT_EQ(compiled(budget).memory().recomputed.products, changes_early);
    EXPECT_TRUE(got.first.same_bits(expected.first));
    EXPECT_TRUE(got.second.same_bits(expected.second));
  }
}

// A value that is used only late is computed later, once.
TEST(Recompute, MovesValuesThatAreNotUsedEarly) {
  Graph g;
  const Tensor x = g.input("x", {n, n}), tall = g.input("tall", {4 * n, n}), late = gelu(x);
  const Tensor wide = matmul(x, matmul(tall, x).view({n, 4 * n}));
  const Tensor y = matmul(matmul(wide, tall), late);
  const std::size_t peak = compile(g, {y}, {.threads = 1}).memory().peak();
  const Program program = compile(g, {y}, {.threads = 1, .memory_budget = peak - matrix});
  EXPECT_LE(program.memory().peak(), peak - matrix);
  EXPECT_EQ(program.memory().recomputed.steps, 0);
  EXPECT_EQ(count(program, "gelu"), 1);
}

}  // namespace
