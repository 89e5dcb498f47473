// Tests fused pointwise ops that end in a reduction over rows, on a GPU
// (backends/cuda/jit/fused_reduction.cpp). Results must be bitwise identical to two separate steps. Skipped
// if there is no GPU.
#include "backends/cuda/cuda.h"
#include "core/compile/fused_reductions.h"
#include "tests/support/nan_rows.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

class CudaFusedReduction : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

const CompileOptions fused{.device = Device::cuda()}, verified{.device = Device::cuda(), .verify = true},
    unfused{.device = Device::cuda(), .fuse = false};

std::size_t joined(const std::vector<Tensor>& ts, const CompileOptions& options = fused) {
  std::size_t n = 0;
  const Program p = compile(ts[0].graph(), ts, options);
  for (const Step& s : p.steps()) n += s.op == &fused_reduction_op;
  return n;
}

void expect_same(const std::vector<Tensor>& ts, const std::vector<Given>& in) {
  const std::vector<Array> got = eval(ts, feeds_of(in), fused), expected = eval(ts, feeds_of(in), unfused);
  for (std::size_t i = 0; i < ts.size(); ++i)
    EXPECT_TRUE(got[i].same_bits(expected[i])) << i << ": " << ts[i].text();
  eval(ts, feeds_of(in), verified);
}

// Used for sums of squares. Their rounding depends on the compiler, because some compilers do not round a
// square before the addition.
void expect_near(const Tensor& y, const std::vector<Given>& in) {
  const Vector a = doubles(eval(y, feeds_of(in), fused)), b = doubles(eval(y, feeds_of(in), unfused));
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i] / b[i], 1, 4 * rounding(y.dtype()));
}
constexpr std::size_t squares = 2;

std::vector<Tensor> all_reductions(const Tensor& x, const Axes& axes, bool keepdim = false) {
  return {sum(x, axes, keepdim),  mean(x, axes, keepdim), sum_squares(x, axes, keepdim),
          prod(x, axes, keepdim), max(x, axes, keepdim),  min(x, axes, keepdim)};
}

// Rows are first shorter than a warp, then short enough for registers, then longer. Two of the reductions are
// tested with each length.
TEST_F(CudaFusedReduction, RowsOfEveryLengthMatchTwoStepsBitwise) {
  std::size_t nth = 0;
  for (DType t : {f32, f64})
    for (const Shape& shape :
         {Shape{5, 1}, Shape{200, 3}, Shape{130, 8}, Shape{9, 37}, Shape{7, 40}, Shape{19, 512},
          Shape{3, 1030}, Shape{3, 2056}, Shape{2, 4096}, Shape{3, 4095}, Shape{2050, 4100}}) {
      if (shape[0] == 2050 && t == f64) continue;
      SCOPED_TRACE(shape.text() + " " + std::string(name_of(t)));
      Graph g;
      const Given x = given(g, shape, t, View::contiguous, 1, 0.9, 1.1),
                  y = given(g, {shape[1]}, t, View::contiguous, 2, -1, 1);
      for (const std::size_t i : {std::size_t{0}, 1 + nth++ % 5}) {
        const Tensor out = all_reductions(abs(x.tensor - y.tensor * 0.1), {1}, i % 2)[i];
        EXPECT_EQ(joined({out}), 1u);
        if (i != squares)
          expect_same({out}, {x, y});
        else
          expect_near(out, {x, y});
      }
    }
}

TEST_F(CudaFusedReduction, ReadsInputsOfAnyLayout) {
  for (View view : all_views) {
    Graph g;
    const Given x = given(g, {12, 3, 32}, f32, view), y = given(g, {12, 3, 32}, f32, View::contiguous, 2),
                row = given(g, {32}, bf16, View::contiguous, 3),
                one = given(g, {12, 3, 1}, f64, View::contiguous, 4);
    const auto wide = [&](const Given& a) { return cast(expand(a.tensor, {12, 3, 32}), f32); };
    const std::vector<Tensor> ts{
        sum(y.tensor * x.tensor, {-1}),          max(y.tensor + wide(row), {-1}, true),
        mean(y.tensor - wide(one), {1, 2}),      sum(cast(y.tensor, f64) * one.tensor, {2}),
        sum((y.tensor * 2).view({36, 32}), {1}), sum(permute(y.tensor * 3, {2, 0, 1}), {0}),
        sum(transpose(y.tensor, 0, 1) * 5, {2})};
    for (const Tensor& out : ts) expect_same({out}, {x, y, row, one});
    EXPECT_EQ(joined({ts[1], ts[3], ts[4], ts[5], ts[6]}), 5u);
  }
}

// The value is also stored. The reduction reads the stored value.
TEST_F(CudaFusedReduction, StoresValuesWithOtherReaders) {
  for (DType t : {f32, bf16, f16, f64})
    for (std::int64_t n : {30, 1032}) {
      Graph g;
      const Given x = given(g, {9, n}, t);
      const Tensor e = exp(x.tensor), s = sum(e, {-1}, true), soft = e / expand(s, {9, n});
      EXPECT_EQ(joined({soft, s}), 1u);
      expect_same({soft, s}, {x});
      expect_same({e, s, max(e * 1.25, {1})}, {x});
    }
}

// A 16-bit value is not rounded if it is not stored.
TEST_F(CudaFusedReduction, ReducesUnroundedValues) {
  for (DType t : {bf16, f16})
    for (std::int64_t n : {40, 2048}) {
      Graph g, on_cpu;
      const Given x = given(g, {5, n}, t, View::contiguous, 1, 0.9, 1.1),
                  y = given(g, {5, n}, t, View::contiguous, 2, 0.9, 1.1);
      std::vector<Tensor> ts;
      for (std::size_t i : {0, 1, 2, 4, 5}) ts.push_back(all_reductions(x.tensor * y.tensor, {1})[i]);
      const Given xc = given(on_cpu, {5, n}, t, View::contiguous, 1, 0.9, 1.1),
                  yc = given(on_cpu, {5, n}, t, View::contiguous, 2, 0.9, 1.1);
      const Tensor wide = cast(xc.tensor, f64) * cast(yc.tensor, f64);
      std::vector<Tensor> expected;
      for (std::size_t i : {0, 1, 2, 4, 5}) expected.push_back(all_reductions(wide, {1})[i]);
      const std::vector<Array> right = eval(expected, feeds_of({xc, yc}), {.device = Device::cpu()});
      for (std::size_t i = 0; i < ts.size(); ++i) {
        EXPECT_EQ(joined({ts[i]}), 1u);
        const Vector a = doubles(eval(ts[i], feeds_of({x, y}), fused)), b = doubles(right[i]);
        // The result is rounded once, and its sums are rounded in f32.
        const double most = rounding(ts[i].dtype()) + static_cast<double>(n) * 0x1p-24;
        for (std::size_t k = 0; k < a.size(); ++k) EXPECT_NEAR(a[k] / b[k], 1, 1.01 * most) << i;
      }
    }
}

TEST_F(CudaFusedReduction, CountsAndAddsIntegers) {
  Graph g;
  const Given x = given(g, {11, 301}, f32), y = given(g, {11, 301}, f32, View::contiguous, 2);
  const Tensor n = cast(x.tensor * 100, i64);
  const std::vector<Tensor> ts{sum(greater(x.tensor, y.tensor), {1}),
                               any(equal(x.tensor, y.tensor), {1}),
                               max(less(x.tensor, y.tensor), {1}),
                               sum(n * n + 1, {1}),
                               prod(n - n - 1, {1}),
                               min(n * 3, {1}),
                               max(n * 3, {1})};
  for (const Tensor& out : ts) EXPECT_EQ(joined({out}), 1u) << out.text();
  expect_same(ts, {x, y});
}

TEST_F(CudaFusedReduction, PropagatesNaN) {
  for (DType t : float_dtypes) {
    Graph g;
    const std::vector<Tensor> ts = reductions_of_nan_rows(g, t);
    for (const Tensor& out : ts) EXPECT_EQ(joined({out}), 1u);
    expect_nan_passed(eval(ts, {}, fused));
  }
}

// If there are few long rows, each row is split into pieces.
TEST_F(CudaFusedReduction, SplitsLongRows) {
  for (DType t : {f32, f64, bf16})
    for (const Shape& shape : {Shape{2, 5000}, Shape{40000}, Shape{1, 4104}, Shape{3, 2, 70000}}) {
      SCOPED_TRACE(shape.text() + " " + std::string(name_of(t)));
      Graph g;
      const Given x = given(g, shape, t, View::contiguous, 1, 0.9, 1.1),
                  y = given(g, shape, t, View::contiguous, 2, 0.9, 1.1);
      // The values are stored. So 16-bit values are rounded, as in two steps.
      const Tensor product = x.tensor * y.tensor, difference = abs(x.tensor - y.tensor);
      const std::vector<Tensor> sums{product, sum(product, {-1})}, largest{difference, max(difference, {-1})};
      for (const std::vector<Tensor>& ts : {sums, largest}) {
        EXPECT_EQ(joined(ts), 1u);
        expect_same(ts, {x, y});
      }
      const Program p = compile(g, {sums[1]}, fused);
      EXPECT_NE(p.choice(0).find("pieces"), std::string::npos) << p.choice(0);
      if (t == f64) expect_same({mean(product, {-1}, true)}, {x, y});
    }
  Graph g;
  const Given x = given(g, {3, 5000}, f32);
  const Tensor n = cast(x.tensor * 100, i64);
  expect_same({sum(n * n, {}), max(n * n * -1, {1}), sum(greater(n, 3))}, {x});
}

// The ops are not fused in these cases, because two separate steps are equally fast.
TEST_F(CudaFusedReduction, SkipsFewNumbersAndRowsWithoutPacks) {
  Graph g;
  const Given x = given(g, {2, 5001}, f32), y = given(g, {64, 64}, f32, View::contiguous, 2);
  EXPECT_EQ(joined({sum(x.tensor * 2, {1})}), 0u);
  EXPECT_EQ(joined({sum(x.tensor * 2)}), 0u);
  EXPECT_EQ(joined({sum(y.tensor * 2)}), 0u);
  EXPECT_EQ(joined({sum(y.tensor * 2, {1})}), 1u);
}

// A row is normalized in place.
TEST_F(CudaFusedReduction, ResultsReuseAnInputsMemory) {
  Graph g;
  const Given x = given(g, {20, 64}, f32);
  const Tensor s = softmax(x.tensor, -1), e = exp(s),
               y = softmax(e / expand(sum(e, {1}, true), {20, 64}), -1);
  EXPECT_EQ(joined({y}), 1u);
  expect_same({y}, {x});
}

}  // namespace
