// Tests that a GEMM adds its result to a sum without a separate step (core/compile/addends.cpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include <tilegrad/tilegrad.h>
#include "core/compile/lower.h"
#include "tests/support/small_models.h"

namespace {

using namespace tg;
using namespace tg::testing;

// Counts the steps that only add tensors. At least two of the tensors must have the same layout.
std::ptrdiff_t sums(const Program& p) {
  return std::ranges::count_if(p.steps(), [](const Step& s) {
    if (s.op != &fused_op) return false;
    const auto& code = s.attrs.as<FusedAttrs>().code;
    return std::ranges::all_of(code, [](const auto& i) { return i.op == &add_op; });
  });
}

std::ptrdiff_t products(const Program& p, std::size_t operands) {
  return std::ranges::count_if(p.steps(),
                               [&](const Step& s) { return s.op == &matmul_op && s.in.size() == operands; });
}

// Inputs are small integers. So all products and sums are exact in every dtype and order.
struct Addends : ::testing::Test {
  Graph g;
  std::mt19937 random{7};
  std::vector<Array> arrays;
  std::vector<Tensor> inputs;

  Tensor input(const Shape& shape, DType dtype = f32) {
    Array a(shape, dtype);
    for (std::int64_t i = 0; i < a.numel(); ++i) a.set(i, static_cast<int>(random() % 5) - 2);
    arrays.push_back(std::move(a));
    inputs.push_back(g.input("x" + std::to_string(inputs.size()), shape, dtype));
    return inputs.back();
  }
  Tensor product(const Shape& batch = {}, DType dtype = f32) {
    Shape left = batch, right = batch;
    left.push_back(6), left.push_back(4), right.push_back(4), right.push_back(8);
    return matmul(input(left, dtype), input(right, dtype));
  }
  std::vector<Feed> feeds(const Program& p) const {
    std::vector<Feed> all;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (p.reads(inputs[i])) all.emplace_back(inputs[i], arrays[i]);
    return all;
  }
  std::vector<Array> run(const std::vector<Tensor>& fetch, const CompileOptions& options) {
    Program p = compile(g, fetch, options);
    p.run(feeds(p));
    std::vector<Array> all;
    for (const Tensor& t : fetch) all.push_back(p.fetch(t));
    return all;
  }
  // Expects this number of GEMMs with an addend and this number of steps that only add. The result must be
  // bitwise identical to executing one op after another, in planned memory and on any number of threads.
  void expect(const std::vector<Tensor>& fetch, std::ptrdiff_t addends, std::ptrdiff_t left) {
    const Program p = compile(g, fetch);
    EXPECT_EQ(products(p, 3), addends) << p.text();
    EXPECT_EQ(sums(p), left) << p.text();
    const std::vector<Array> expected = run(fetch, {.threads = 1, .fuse = false, .reuse = false});
    for (const CompileOptions& way : {CompileOptions{.threads = 1, .verify = true}, {.threads = 3}}) {
      const std::vector<Array> got = run(fetch, way);
      for (std::size_t i = 0; i < fetch.size(); ++i) EXPECT_TRUE(got[i].same_bits(expected[i])) << i;
    }
  }
};

TEST_F(Addends, ASumOfProductsIsAccumulatedByThem) {
  for (const DType t : {f64, f32, bf16, f16}) {
    const Tensor a = product({}, t), b = product({}, t), c = product({}, t);
    expect({a + b}, 1, 0);
    expect({a + b + c}, 2, 0);
    expect({c + (a + b)}, 2, 0);
    expect({b + (c + a)}, 2, 0);
  }
}

// A layer records x [2, 3, 6] as the rows of GEMMs. The gradients of these rows are summed as gradients of x.
TEST_F(Addends, GradientOfASharedInputIsAccumulatedByProducts) {
  for (const DType t : {f64, f32, bf16}) {
    const Tensor x = input({2, 3, 6}, t);
    std::vector<Tensor> ys;
    for (const std::int64_t n : {5, 7, 4}) ys.push_back(linear(x, transpose(input({n, 6}, t), 0, 1)));
    const Tensor y = concat(ys, 2);
    expect(gradients(y, {x}, input({2, 3, 16}, t)), 2, 0);
    const std::vector<Tensor> read{transpose(gradients(y, {x}, input({2, 3, 16}, t))[0], 0, 2) * 2};
    expect(read, 2, 0);
  }
}

TEST_F(Addends, ATensorComputedEarlierIsTheFirstAddend) {
  const Tensor x = input({6, 8}), e = flip(x, 0), p = product(), q = product();
  expect({x + p}, 1, 0);
  expect({p + e + q}, 2, 0);
  const Tensor biased = linear(input({6, 4}), input({4, 8}), input({8})), r = product();
  expect({biased + r}, 2, 0);  // the first GEMM already adds its bias
  const Tensor h = input({8, 8});
  expect({h + matmul(h, transpose(h, 0, 1))}, 1, 0);  // the addend may also be an operand
}

TEST_F(Addends, ItemsOfABatchAreAdded) {
  const Tensor a = product({3, 2}), b = product({3, 2});
  expect({a + b}, 1, 0);
  const Tensor one = matmul(input({6, 4}), input({2, 4, 8})), other = matmul(input({6, 4}), input({2, 4, 8}));
  expect({one + other}, 1, 0);
  const Tensor rows = linear(input({2, 6, 4}), input({4, 8}));  // the batch is one GEMM with 12 rows
  expect({one + rows}, 0, 1);
}

// If a sum is part of a fused elementwise kernel, this kernel reads each term only once. So accumulation in a
// GEMM would save nothing.
TEST_F(Addends, SumsThatSaveNoPassAreNotFused) {
  const Tensor a = product(), b = product(), c = product();
  expect({a * 2 + b}, 0, 0);
  expect({exp(0 * (a + b))}, 0, 0);
  expect({a - b}, 0, 0);
  expect({a + 1}, 0, 1);
  expect({cast(a, f64) + cast(b, f64)}, 0, 0);
  expect({c + c}, 0, 1);
}

TEST_F(Addends, AProductWithOtherReadersIsNotChanged) {
  const Tensor a = product(), b = product();
  expect({a + b, softmax(b, -1)}, 0, 1);
  expect({a + b, b}, 0, 1);
  expect({a + b, transpose(b, 0, 1)}, 0, 1);
  expect({a + b, softmax(a, -1)}, 1, 0);  // both GEMMs run before softmax; the sum needs no extra pass
  expect({a + b, a}, 1, 0);
}

TEST_F(Addends, ALaterOrDifferentlyStoredTermIsAddedSeparately) {
  const Tensor p = product(), later = flip(input({6, 8}), 0);
  expect({p + later}, 0, 1);
  const Tensor a = input({6, 8}), b = input({6, 8});
  expect({p + a + b}, 0, 1);  // a GEMM would have to read two addends
  expect({p + input({8})}, 0, 1);
  expect({p + linear(input({6, 4}), input({4, 8}), input({8}))}, 1, 1);  // that GEMM adds its bias instead
  const Tensor square = matmul(input({6, 4}), input({4, 6})), second = matmul(input({6, 4}), input({4, 6}));
  expect({square + transpose(second, 0, 1)}, 0, 1);
  const Tensor wide = matmul(input({3, 4}), input({4, 16}));
  expect({p + reshape(wide, {6, 8})}, 0, 1);  // the rows of this term have a different length
  expect({p + slice(matmul(input({6, 4}), input({4, 16})), 1, 0, 8)}, 0, 1);
  const Tensor tall = matmul(input({12, 4}), input({4, 8})), other = matmul(input({12, 4}), input({4, 8}));
  expect({slice(tall, 0, 0, 6) + slice(other, 0, 0, 6)}, 0, 1);
}

TEST_F(Addends, MoreTermsThanAFusedStepHasInputsAreAccumulated) {
  Tensor s = product();
  for (int i = 0; i < 29; ++i) s = s + product();
  expect({s}, 29, 0);
}

// The last GEMM of a sum writes to the memory of the sum.
TEST_F(Addends, SumsAreFetchedJoinedAndAssigned) {
  const Tensor a = product({2}), b = product({2}), c = product(), d = product(), batch = a + b, s = c + d;
  expect({batch, transpose(s, 0, 1), concat({s, c}, 0)}, 2, 0);
  expect({concat({batch, batch}, 1)}, 1, 0);
  for (const bool in_rows : {true, false}) {
    const Array of_p = Array::of<float>({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}),
                of_m = Array::of<float>({2, 2}, {1, 0, 0, 2});
    Parameter p("p", of_p), m("m", of_m);
    Graph other;
    const Tensor x = other.param(p), w = other.param(m), rows = view(x, {4, 2});
    const Tensor next = in_rows ? view(matmul(rows, w) + matmul(rows, transpose(w, 0, 1)), {2, 2, 2})
                                : linear(x, w) + linear(x, transpose(w, 0, 1));
    const Tensor more = w + matmul(transpose(rows, 0, 1), rows);
    std::vector<std::vector<float>> results;
    for (const bool fuse : {true, false}) {
      p.write(of_p), m.write(of_m);
      Program program = compile(other, {}, {.assign = {{p, next}, {m, more}}, .fuse = fuse, .verify = true});
      EXPECT_EQ(products(program, 3), !fuse ? 0 : in_rows ? 2 : 1) << program.text();
      program.run(), program.run();
      results.push_back(p.read().values<float>()), results.push_back(m.read().values<float>());
    }
    EXPECT_EQ(results[0], results[2]);
    EXPECT_EQ(results[1], results[3]);
  }
}

// A GEMM result is not rounded before it is added. Here 1.0078125² = 1.015625 + 2⁻¹⁴. In bf16, this would be
// rounded to 1.015625.
TEST_F(Addends, A16BitSumIsRoundedOnceForEachProduct) {
  const Array one = Array::of<float>({1, 1}, {1.0078125f}).to(bf16),
              other = Array::of<float>({1, 1}, {-1.015625f}).to(bf16),
              unit = Array::of<float>({1, 1}, {1}).to(bf16);
  const Tensor x = g.constant(one), y = g.constant(other), u = g.constant(unit);
  const Tensor first = matmul(y, u), second = matmul(x, x), sum = first + second;
  EXPECT_EQ(eval(sum).at(0), 0x1p-14);
  EXPECT_EQ(eval(sum, {}, {.fuse = false}).at(0), 0);
}

TEST_F(Addends, BatchInvariantProgramsAddSeparately) {
  const Program p = compile(g, {product() + product()}, {.batch_invariant = true});
  EXPECT_EQ(products(p, 3), 0) << p.text();
  EXPECT_EQ(sums(p), 1);
}

// If three GEMM results are summed, at most two buffers are alive. One contains the last result. The other
// contains the partial sum, and the next GEMM overwrites it.
TEST_F(Addends, NeedLessMemoryThanAllTerms) {
  constexpr std::int64_t n = 64;
  const Tensor x = input({n, n});
  Tensor s = matmul(x, x);
  for (int i = 0; i < 3; ++i) s = s + matmul(x, transpose(x, 0, 1));
  const auto arena = [&](bool fuse) {
    return compile(g, {sum(s)}, {.threads = 1, .fuse = fuse, .plan_only = true}).memory().arena;
  };
  EXPECT_LE(arena(true), n * n * 4 + 64);
  EXPECT_GE(arena(false), 2 * n * n * 4);
}

// Tests graphs of GEMMs and sums with random orders, shapes, views and readers.
TEST_F(Addends, RandomSumsMatchSeparateStepsBitwise) {
  std::ptrdiff_t addends = 0, left = 0;
  for (int round = 0; round < 100; ++round) {
    std::vector<Tensor> terms;
    const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    const auto any = [&] { return terms[pick(terms.size())]; };
    for (int i = 0; i < 3; ++i) terms.push_back(input({2, 3, 8}, f64));
    const Tensor w = input({8, 8}, f64), batch = input({2, 8, 8}, f64), bias = input({8}, f64);
    for (int i = 0; i < 14; ++i) {
      const Tensor a = any(), b = any();
      const Tensor square = minimum(maximum(a, -1), 1);
      switch (pick(7)) {
        case 0:
          terms.push_back(linear(square, w));
          break;
        case 1:
          terms.push_back(matmul(square, batch));
          break;
        case 2:
          terms.push_back(linear(square, transpose(w, 0, 1), bias));
          break;
        case 3:
          terms.push_back(transpose(matmul(transpose(w, 0, 1), transpose(square, 1, 2)), 1, 2));
          break;
        default:
          terms.push_back(a + b);
      }
    }
    const std::vector<Tensor> fetch{terms.back(), any(), sum(any())};
    const Program p = compile(g, fetch, {.plan_only = true});
    addends += products(p, 3), left += sums(p);
    const std::vector<Array> expected = run(fetch, {.threads = 1, .fuse = false, .reuse = false});
    for (const CompileOptions& way : {CompileOptions{.threads = 1, .verify = true}, {.threads = 2}}) {
      const std::vector<Array> got = run(fetch, way);
      for (std::size_t i = 0; i < fetch.size(); ++i)
        EXPECT_TRUE(got[i].same_bits(expected[i])) << "round " << round << ", value " << i;
    }
  }
  EXPECT_GT(addends, 50);
  EXPECT_GT(left, 20);
}

// In a training step of each architecture, several GEMMs of a block read the same tensor. Examples are the
// query, key and value projections, the two GEMMs of a gated MLP, and the GEMMs of latents.
TEST_F(Addends, AModelsGradientsAreAddedByProducts) {
  for (const auto& [name, config] : small_models(12)) {
    SCOPED_TRACE(name);
    Graph graph;
    nn::Params params(3);
    const nn::Model model(params, config);
    const nn::Autocast autocast(graph, nn::Precision::bf16, true);
    const Tensor tokens = graph.input("tokens", {2, 12}, i32), targets = graph.input("targets", {2, 12}, i32);
    const Tensor loss = model.loss(model.features(tokens), targets);
    std::vector<Tensor> weights;
    for (const Parameter& p : params.all()) weights.push_back(graph.param(p));
    const Program p = compile(graph, gradients(loss, weights), {.plan_only = true});
    const std::ptrdiff_t forward = products(compile(graph, {loss}, {.plan_only = true}), 3);
    const std::string_view model_name = name;
    EXPECT_EQ(products(p, 3) - forward, model_name == "GPT"     ? 0
                                        : model_name == "Llama" ? 2 * (2 + 1)
                                                                : 2 * (1 + 1))
        << p.text();
  }
}

}  // namespace
