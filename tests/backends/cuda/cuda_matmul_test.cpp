// Products on a GPU with what their epilogue does: bias, and gelu_tanh with and without the product itself.
// Against the CPU. Skipped where there is no GPU.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "backends/cuda/cuda.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

class CudaMatmul : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

struct Layer {
  Graph g;
  Given x, w, bias, next;
  Tensor h, y;  // x·w + bias, and gelu_tanh of it

  Layer(DType t, std::int64_t out, bool has_bias)
      : x(given(g, {3, 7, 24}, t, View::contiguous, 1)),
        w(given(g, {24, out}, t, View::transposed, 2)),
        bias(given(g, {out}, t, View::contiguous, 3)),
        next(given(g, {out, 16}, t, View::contiguous, 4)),
        h(linear(x.tensor, w.tensor, has_bias ? bias.tensor : Tensor())),
        y(gelu_tanh(h)) {}

  void expect_same(const std::vector<Tensor>& ts, double roundings) {
    const std::vector<Feed> feeds = feeds_of({x, w, bias, next});
    const auto expected = eval(ts, feeds, {.device = Device::cpu()}),
               got = eval(ts, feeds, {.device = Device::cuda()});
    for (std::size_t i = 0; i < ts.size(); ++i)
      EXPECT_TRUE(close(doubles(got[i]), doubles(expected[i]), roundings * rounding(ts[i].dtype())))
          << "result " << i << " " << ts[i].text();
  }
};

TEST_F(CudaMatmul, TakesGeluInEveryWay) {
  for (DType t : {f32, bf16, f16, f64})
    for (std::int64_t out : {32, 20})  // 20: rows that are no multiple of 8
      for (bool bias : {false, true}) {
        Layer only(t, out, bias);  // nobody else reads the product
        only.expect_same({only.y}, 8);
        Layer both(t, out, bias);
        both.expect_same({both.h, both.y}, 8);
        Layer used(t, out, bias);  // the product is read later
        used.expect_same({matmul(used.y, used.next.tensor) + sum(used.h)}, 16);
      }
}

TEST_F(CudaMatmul, GivesTheGradientsOfGelu) {
  for (DType t : {f32, bf16}) {
    Layer l(t, 32, true);
    l.expect_same(gradients(weighted_sum(l.y), {l.x.tensor, l.w.tensor, l.bias.tensor}), 16);
  }
}

// Large products whose operands lie along k or across it: where that takes less time, one is copied
// (turned_product.h). By the emulator's clock it always does.
TEST_F(CudaMatmul, GivesProductsOfF32HoweverTheirOperandsLie) {
  struct Case {
    std::int64_t m, n, k;
    View a, b;  // contiguous: a lies along k and b across it; transposed: the other way round
    bool tf32;
    const char* copied;
    bool adds = false;
  };
  constexpr View across_a = View::transposed, across_b = View::contiguous, along_a = View::contiguous,
                 along_b = View::transposed;
  for (const Case& c : {Case{136, 264, 3000, across_a, across_b, true, "the left operand copied along k"},
                        {264, 136, 3000, across_a, across_b, true, "the right operand copied along k", true},
                        {136, 264, 3000, along_a, across_b, true, "the right operand copied along k"},
                        {136, 264, 3000, across_a, along_b, true, "the left operand copied along k"},
                        {136, 264, 3000, along_a, along_b, true, nullptr},
                        {264, 136, 3000, along_a, along_b, false, "the right operand copied across k", true},
                        {136, 264, 3000, along_a, across_b, false, "the left operand copied across k"},
                        {136, 264, 3000, across_a, across_b, false, nullptr}}) {
    Graph g;
    const Given a = given(g, {c.m, c.k}, f32, c.a, 1), b = given(g, {c.k, c.n}, f32, c.b, 2),
                d = given(g, {c.m, c.n}, f32, View::contiguous, 3, -9, 9);
    const Tensor y = c.adds ? matmul(a.tensor, b.tensor) + d.tensor : matmul(a.tensor, b.tensor);
    const std::vector<Feed> feeds = feeds_of({a, b, d});
    const CompileOptions on_gpu{.device = Device::cuda(), .tf32 = c.tf32};
    const Array expected = eval(y, feeds, {.device = Device::cpu()}), got = eval(y, feeds, on_gpu);
    // Each factor is rounded to 2⁻¹¹ of itself in TF32; sums in f32.
    const double error = 8 * (c.tf32 ? 0x1p-11 : 0x1p-22) * std::sqrt(2. * static_cast<double>(c.k)) / 3;
    double apart = 0;
    for (std::int64_t i = 0; i < got.numel(); ++i)
      apart = std::max(apart, std::abs(got.at(i) - expected.at(i)));
    EXPECT_LT(apart, error) << c.m << " " << c.n << (c.tf32 ? " TF32" : "");
    if (const char* gpu = std::getenv("TG_EMULATED_GPU"); gpu && std::string(gpu) == "hopper") {
      const std::string choice = compile(g, {y}, on_gpu).choice(0);
      EXPECT_EQ(choice.find(c.copied ? c.copied : "copied") != std::string::npos, c.copied != nullptr)
          << choice;
    }
  }
}

// The gradient of what three products read, to which two of its products are added: by cuBLASLt, by kernels
// of few rows, and by the one for any strides.
TEST_F(CudaMatmul, GivesSumsOfProducts) {
  for (const DType t : {f32, bf16, f16, f64})
    for (const std::int64_t rows : {5, 70})
      for (const View view : {View::contiguous, View::transposed, View::sliced}) {
        Graph g;
        std::vector<Given> operands{given(g, {2, rows, 24}, t, View::contiguous, 1)};
        const Tensor x = operands[0].tensor;
        std::vector<Tensor> ys;
        for (const std::int64_t out : {16, 40, 8}) {
          operands.push_back(given(g, {24, out}, t, view, 1 + operands.size()));
          ys.push_back(linear(x, operands.back().tensor));
        }
        const std::vector<Tensor> z = gradients(weighted_sum(concat(ys, 2)), {x});
        const Program program = compile(g, z, {.device = Device::cuda()});
        const auto has_addend = [](const Step& s) { return s.op == &matmul_op && s.in.size() == 3; };
        EXPECT_EQ(std::ranges::count_if(program.steps(), has_addend), 2) << program.text();
        const std::vector<Feed> feeds = feeds_of(operands);
        const Array expected = eval(z, feeds, {.device = Device::cpu()})[0],
                    got = eval(z, feeds, {.device = Device::cuda()})[0];
        const double roundings = t == bf16 || t == f16 ? 8 : 64;  // of three results, or of 64 additions
        EXPECT_TRUE(close(doubles(got), doubles(expected), roundings * rounding(t))) << z[0].text();
        EXPECT_TRUE(got.same_bits(eval(z, feeds, {.device = Device::cuda()})[0]));
      }
}

// Operands that cuBLASLt takes, and strides that only our own kernel does.
TEST_F(CudaMatmul, GivesProductsOfHalvesInF32) {
  for (const DType t : {bf16, f16, f32})
    for (const View view : {View::contiguous, View::transposed, View::sliced}) {
      Graph g;
      const Given a = given(g, {3, 24}, t, view, 1), b = given(g, {24, 16}, t, view, 2);
      const Tensor y = matmul_wide(a.tensor, b.tensor),
                   batched = matmul_wide(unsqueeze(a.tensor, 0), b.tensor);
      ASSERT_EQ(y.dtype(), f32);
      const std::vector<Feed> feeds = feeds_of({a, b});
      const auto expected = eval({y, batched}, feeds),
                 got = eval({y, batched}, feeds, {.device = Device::cuda()});
      for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_TRUE(close(doubles(got[i]), doubles(expected[i]), 24 * rounding(f32))) << y.text();
        if (t != f32) {
          EXPECT_FALSE(got[i].to(t).to(f32).same_bits(got[i]));
        }
      }
    }
}

}  // namespace
