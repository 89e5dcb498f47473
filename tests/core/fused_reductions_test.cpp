// Tests fused pointwise ops that end in a reduction over rows (core/compile/fused_reductions.h).
#include <gtest/gtest.h>

#include <functional>

#include "core/compile/fused_reductions.h"
#include "tests/support/nan_rows.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

const CompileOptions unfused{.fuse = false};
using Reduce = std::function<Tensor(const Tensor&, const Axes&, bool)>;
const std::pair<const char*, Reduce> reductions[] = {
    {"sum", [](const Tensor& x, const Axes& a, bool k) { return sum(x, a, k); }},
    {"mean", [](const Tensor& x, const Axes& a, bool k) { return mean(x, a, k); }},
    {"sum_squares", [](const Tensor& x, const Axes& a, bool k) { return sum_squares(x, a, k); }},
    {"prod", [](const Tensor& x, const Axes& a, bool k) { return prod(x, a, k); }},
    {"max", [](const Tensor& x, const Axes& a, bool k) { return max(x, a, k); }},
    {"min", [](const Tensor& x, const Axes& a, bool k) { return min(x, a, k); }}};

std::size_t joined_in(const Program& p) {
  std::size_t n = 0;
  for (const Step& s : p.steps()) n += s.op == &fused_reduction_op;
  return n;
}
std::size_t joined(const std::vector<Tensor>& ts, const CompileOptions& options = {}) {
  return joined_in(compile(ts[0].graph(), ts, options));
}

// Fused results must be bitwise identical to separate steps, on any number of threads and in planned memory.
void expect_same(const std::vector<Tensor>& ts, const std::vector<Given>& in) {
  const std::vector<Array> got = run_checked(ts, feeds_of(in)), expected = eval(ts, feeds_of(in), unfused);
  for (std::size_t i = 0; i < ts.size(); ++i) EXPECT_TRUE(got[i].same_bits(expected[i])) << ts[i].text();
}

TEST(FusedReductions, AreOneStepThatStoresOnlyTheResult) {
  Graph g;
  const Given x = given(g, {6, 50}), y = given(g, {6, 50}, f64, View::contiguous, 2);
  const Tensor out = mean(x.tensor * y.tensor, {-1});
  const Program p = compile(g, {out});
  ASSERT_EQ(p.steps().size(), 1u) << p.text();
  const Step& s = p.steps()[0];
  EXPECT_EQ(s.op, &fused_reduction_op);
  EXPECT_EQ(s.name, "mean");
  ASSERT_EQ(s.out.size(), 1u);
  EXPECT_EQ(s.out[0].layout.numel(), 6);
  EXPECT_EQ(p.buffers().size(), 0u);  // the product is not stored; y is fetched, so it is elsewhere
  EXPECT_NE(p.choice(0).find("fused mul(in0, in1) → mean(%0) over axes [1]"), std::string::npos)
      << p.choice(0);
  expect_same({out}, {x, y});
}

// Each operation rounds once. The fused reduction rounds like a separate step.
TEST(FusedReductions, RoundAsOftenAsTheirOps) {
  Graph g;
  const Tensor y = exp(g.input("x", {6, 50})) * 2;
  const Program p = compile(g, {y, sum(y, {1})}, {.plan_only = true});
  ASSERT_EQ(p.steps().size(), 1u) << p.text();
  const Step& s = p.steps()[0];
  const Operand out[] = {{f32, row_major({6, 50})}, {f32, row_major({6})}};
  EXPECT_EQ(s.op->roundings({}, out, s.attrs), 2 + 50 + 1);
}

TEST(FusedReductions, ReduceRowsOfEveryLength) {
  const std::pair<Shape, Axes> cases[] = {{{6, 50}, {-1}},
                                          {{3, 4, 50}, {1, 2}},
                                          {{6, 50}, {}},
                                          {{7, 1}, {1}},
                                          {{1, 9}, {1}},
                                          {{1, 1}, {}},
                                          {{33, 1024}, {1}},
                                          {{3, 1025}, {1}},
                                          {{2, 5000}, {1}},
                                          {{70001}, {}},
                                          {{3, 40000}, {1}},
                                          {{300, 333}, {1}},
                                          {{2, 1, 3, 2, 1, 2, 2, 5}, {6, 7}}};
  for (const auto& [shape, axes] : cases)
    for (const auto& [name, reduce] : reductions)
      for (DType t : {f64, f32})
        for (bool keepdim : {false, true}) {
          SCOPED_TRACE(std::string(name) + " of " + shape.text() + " over " + axes.text());
          Graph g;
          const Given x = given(g, shape, t, View::contiguous, 1, 0.9, 1.1),
                      y = given(g, shape, t, View::contiguous, 2, -1, 1.05);
          const Tensor out = reduce(abs(x.tensor - y.tensor * 0.1), axes, keepdim);
          EXPECT_EQ(joined({out}), 1u);
          expect_same({out}, {x, y});
        }
}

TEST(FusedReductions, ReadInputsOfAnyLayout) {
  for (DType t : {f64, f32})
    for (View view : all_views) {
      Graph g;
      const Given x = given(g, {12, 30}, t, view), y = given(g, {12, 30}, t, View::contiguous, 2),
                  row = given(g, {30}, t, View::contiguous, 3),
                  one = given(g, {12, 1}, t, View::contiguous, 4);
      const auto wide = [&](const Given& a) { return expand(a.tensor, {12, 30}); };
      const std::vector<Tensor> ts{sum(y.tensor * x.tensor, {-1}), max(y.tensor + wide(row), {-1}, true),
                                   mean(exp(y.tensor - wide(one)), {-1}), sum(wide(row) * wide(one), {1})};
      // Inputs that are contiguous across rows are read in tiles instead of rows.
      EXPECT_EQ(joined(ts), view == View::transposed ? 3u : 4u) << static_cast<int>(view);
      expect_same(ts, {x, y, row, one});
    }
}

// The memory order defines the rows. The order of the axes does not matter.
TEST(FusedReductions, FollowTheOrderOfMemory) {
  Graph g;
  const Given x = given(g, {6, 4, 50}, f32), y = given(g, {6, 4, 50}, f32, View::contiguous, 2);
  const Tensor z = x.tensor * y.tensor, transposed = transpose(x.tensor, 0, 2) / transpose(y.tensor, 0, 2);
  EXPECT_EQ(joined({sum(z.view({6, 200}), {1})}), 1u);
  EXPECT_EQ(joined({sum(permute(z, {2, 0, 1}), {0})}), 1u);
  EXPECT_EQ(joined({sum(transposed, {0})}), 1u);
  EXPECT_EQ(joined({sum(transposed, {0, 1}, true)}), 1u);
  EXPECT_EQ(joined({sum(transposed, {2})}), 0u);
  EXPECT_EQ(joined({sum(z, {0})}), 0u);
  EXPECT_EQ(joined({sum(z, {1})}), 0u);
  EXPECT_EQ(joined({sum(z, {0, 2})}), 0u);
  EXPECT_EQ(joined({sum(slice(z, 2, 0, 49), {2})}), 0u);
  EXPECT_EQ(joined({sum(slice(z, 0, 1, 6), {2})}), 0u);
  EXPECT_EQ(joined({sum(slice(z, 0, 0, 5), {2})}), 0u);
  EXPECT_EQ(joined({sum(expand(unsqueeze(z, 3), {6, 4, 50, 2}), {3})}), 0u);
  expect_same({sum(z.view({6, 200}), {1})}, {x, y});
  expect_same({max(permute(z, {2, 0, 1}), {0})}, {x, y});
  expect_same({mean(transposed, {0}), sum(transposed, {2})}, {x, y});
  expect_same({sum(transposed, {0, 1}, true), sum(z, {0, 2})}, {x, y});
}

TEST(FusedReductions, StoreValuesWithOtherReaders) {
  for (DType t : {f64, f32, bf16, f16}) {
    Graph g;
    const Given x = given(g, {9, 130}, t);
    const Tensor e = exp(x.tensor), soft = e / expand(sum(e, {-1}, true), {9, 130});
    const Program p = compile(g, {soft});
    EXPECT_EQ(p.steps().size(), 2u) << p.text();
    ASSERT_EQ(joined_in(p), 1u);
    EXPECT_EQ(p.steps()[0].out.size(), 2u);
    EXPECT_NE(p.text().find("exp(in0)"), std::string::npos) << p.text();
    expect_same({soft}, {x});
    expect_same({soft, e}, {x});
    const Tensor y = x.tensor * 1.1, s = sum(y, {-1}), scaled = y * 3;
    EXPECT_EQ(joined({y, s, scaled}), 1u);
    expect_same({y, s, scaled}, {x});
  }
}

TEST(FusedReductions, OneOfSeveralResultsIsReduced) {
  Graph g;
  const Given x = given(g, {9, 130}, f32), y = given(g, {9, 130}, f32, View::contiguous, 2);
  const Tensor d = x.tensor - y.tensor, q = d * d, a = abs(d);
  for (const std::vector<Tensor>& ts : {std::vector{d, sum(q, {-1})},
                                        {sum(q, {-1}), a},
                                        {sum(a, {-1}), sum(q, {-1})},
                                        {d, q, a, max(q, {-1}), min(a, {-1})}}) {
    const Program p = compile(g, ts);
    EXPECT_EQ(joined_in(p), 1u) << p.text();
    expect_same(ts, {x, y});
  }
}

// A 16-bit value is not rounded if it is not stored, as in any fused step. The reduction reads the value in
// f32.
TEST(FusedReductions, ReduceUnroundedValues) {
  for (DType t : {bf16, f16})
    for (const auto& [name, reduce] : reductions) {
      Graph g;
      const Given x = given(g, {5, 700}, t, View::contiguous, 1, 0.9, 1.1),
                  y = given(g, {5, 700}, t, View::contiguous, 2, 0.9, 1.1);
      const Tensor half = reduce(x.tensor * y.tensor, {1}, false),
                   wide = reduce(cast(x.tensor, f32) * cast(y.tensor, f32), {1}, false);
      EXPECT_EQ(joined({half}), 1u);
      const Array got = run_checked({half}, feeds_of({x, y}))[0];
      EXPECT_TRUE(got.same_bits(eval(cast(wide, half.dtype()), feeds_of({x, y}), unfused))) << name;
    }
}

TEST(FusedReductions, CountAndAddIntegers) {
  Graph g;
  const Given x = given(g, {11, 300}, f32), y = given(g, {11, 300}, f32, View::contiguous, 2);
  const Tensor hits = greater(x.tensor, y.tensor), n = cast(x.tensor * 100, i64);
  const std::vector<Tensor> ts{sum(hits, {1}),        any(equal(x.tensor, y.tensor), {1}),
                               all(hits, {}),         max(logical_not(hits), {1}),
                               sum(n * n + 1, {1}),   prod(n - n + 1, {1}),
                               min(n * 3, {1}),       sum(cast(hits, i64) * n, {1}),
                               sum(cast(n, i32), {1})};
  EXPECT_EQ(joined(ts), 8u);  // narrow integers are always stored in memory
  expect_same(ts, {x, y});
}

TEST(FusedReductions, PropagateNaN) {
  Graph g;
  for (DType t : float_dtypes) {
    const std::vector<Tensor> ts = reductions_of_nan_rows(g, t);
    EXPECT_EQ(joined(ts), 3u);
    expect_nan_passed(eval(ts));
  }
}

TEST(FusedReductions, EmptyTensorsAreTwoSteps) {
  Graph g;
  const Given none = given(g, {0, 5}), rows = given(g, {5, 0}, f64, View::contiguous, 2);
  const std::vector<Tensor> ts{sum(none.tensor * 2, {1}), sum(rows.tensor * 2, {1}),
                               prod(rows.tensor * 2, {})};
  EXPECT_EQ(joined(ts), 0u);
  expect_same(ts, {none, rows});
  const auto got = eval(ts, feeds_of({none, rows}));
  EXPECT_EQ(got[0].numel(), 0);
  EXPECT_EQ(doubles(got[1]), Vector(5));
  EXPECT_EQ(got[2].at(0), 1);
}

TEST(FusedReductions, StayTwoStepsIfFusionIsImpossible) {
  Graph g;
  const Given x = given(g, {8, 64}, f32), w = given(g, {64, 32}, f32, View::contiguous, 2);
  const Tensor out = sum(x.tensor * 2, {1});
  EXPECT_EQ(joined({out}, {.batch_invariant = true}), 0u);
  EXPECT_EQ(joined({out}, {.fuse = false}), 0u);
  // A GPU fuses this gelu_tanh with its GEMM.
  EXPECT_EQ(joined({sum(gelu_tanh(matmul(x.tensor, w.tensor)), {1})}), 0u);
  EXPECT_EQ(joined({sum(gelu_tanh(matmul(x.tensor, w.tensor)) * 2, {1})}), 1u);
  EXPECT_EQ(joined({sum(x.tensor, {1})}), 0u);
  EXPECT_EQ(joined({argmax(x.tensor * 2, {1}), logsumexp(x.tensor * 2, {1})}), 0u);
}

// The reduced value and the result may both reuse the memory of an unused input.
TEST(FusedReductions, ReuseAnInputsMemory) {
  Graph g;
  const Given x = given(g, {20, 60}, f32);
  const Tensor s = softmax(x.tensor, -1), e = exp(s),
               y = softmax(e / expand(sum(e, {1}, true), {20, 60}), -1);
  const Program p = compile(g, {y});
  EXPECT_EQ(joined_in(p), 1u);
  EXPECT_LE(p.memory().arena, 20 * 60 * 4u + 256);
  const Tensor thin = softmax(x.tensor, -1).view({20 * 60, 1}), all = sum(exp(thin), {1}, true);
  expect_same({y, softmax(all.view({20, 60}), 0)}, {x});
}

TEST(FusedReductions, ParametersAreAssigned) {
  for (const bool fuse : {true, false}) {
    Parameter p("p", Array::of<float>({2, 2}, {1, 2, 3, 4})), m("m", Array::of<float>({2}, {0, 0}));
    Graph g;
    const Tensor x = g.param(p), v = g.param(m), next = x * 2, rows = sum(next, {1});
    Program program =
        compile(g, {sum(v * v, {0})}, {.assign = {{p, next}, {m, rows}}, .fuse = fuse, .verify = true});
    program.run(), program.run();
    EXPECT_EQ(p.read().values<float>(), (std::vector<float>{4, 8, 12, 16})) << fuse;
    EXPECT_EQ(m.read().values<float>(), (std::vector<float>{12, 28})) << fuse;
  }
}

// If a stored value is needed late, it is recomputed to meet a budget. The value's row sums are recomputed
// with it.
TEST(FusedReductions, AreRecomputedWithinABudget) {
  constexpr std::int64_t n = 64;
  Graph g;
  const Given x = given(g, {n, n}, f32, View::contiguous, 1, -0.1, 0.1);
  Tensor h = x.tensor;
  std::vector<Tensor> hs, es;
  for (int i = 0; i < 6; ++i) {
    es.push_back(exp(h)), hs.push_back(h);
    h = matmul(es.back() / expand(sum(es.back(), {1}, true), {n, n}), x.tensor);
  }
  for (std::size_t i = es.size(); i-- > 0;) h = matmul(matmul(h, es[i]), hs[i]);
  const std::size_t peak = compile(g, {h}).memory().peak();
  Program within = compile(g, {h}, {.threads = 1, .memory_budget = peak - 2 * n * n * 4});
  EXPECT_GT(within.memory().recomputed.steps, 0);
  EXPECT_GT(joined_in(within), 6u) << within.text();
  within.run(feeds_of({x}));
  EXPECT_TRUE(within.fetch(h).same_bits(eval(h, feeds_of({x}), unfused)));
}

TEST(FusedReductions, GradientsMatchTwoSteps) {
  Graph g;
  const Given x = given(g, {4, 9}), w = given(g, {9}, f64, View::contiguous, 2);
  const Tensor square = mean(x.tensor * x.tensor, {-1}, true),
               norm = x.tensor * rsqrt(expand(square, {4, 9}) + 1e-5) * expand(w.tensor, {4, 9});
  expect_gradients(weighted_sum(norm), {x, w});
}

}  // namespace
