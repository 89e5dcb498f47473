// Compares GEMMs and their epilogues on a GPU with the CPU. Covers bias and gelu_tanh. The GEMM result before
// gelu_tanh is also stored, or not. Skipped if there is no GPU.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
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

bool is_hopper() {
  Graph g;
  const Tensor x = g.input("x", {2});
  return compile(g, {x + 1}, {.device = Device::cuda()}).choice(0).find("sm_90") == 0;
}

struct Layer {
  Graph g;
  Given x, w, bias, next;
  Tensor h, y;  // x·w + bias, and its gelu_tanh

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

TEST_F(CudaMatmul, FusesGeluInEveryWay) {
  for (DType t : {f32, bf16, f16, f64})
    for (std::int64_t out : {32, 20})  // 20: the row size is not a multiple of 8
      for (bool bias : {false, true}) {
        Layer only(t, out, bias);  // the GEMM result has no other reader
        only.expect_same({only.y}, 8);
        Layer both(t, out, bias);
        both.expect_same({both.h, both.y}, 8);
        Layer used(t, out, bias);  // the GEMM result is read later
        used.expect_same({matmul(used.y, used.next.tensor) + sum(used.h)}, 16);
      }
}

TEST_F(CudaMatmul, ComputesTheGradientsOfGelu) {
  for (DType t : {f32, bf16}) {
    Layer l(t, 32, true);
    l.expect_same(gradients(weighted_sum(l.y), {l.x.tensor, l.w.tensor, l.bias.tensor}), 16);
  }
}

// The operands of large GEMMs are contiguous along k or across k. An operand is first copied to the other
// layout if this is faster (transposed_gemm.cpp). On the emulator, the copy always counts as faster.
TEST_F(CudaMatmul, MultipliesF32InAnyLayout) {
  struct Case {
    std::int64_t m, n, k;
    View a, b;  // contiguous: a along k, b across k; transposed: a across k, b along k
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
    // TF32 rounds each factor with a relative error of 2⁻¹¹. Sums are in f32.
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

// A GEMM must keep its first algorithm, because the algorithm determines the bits of the result. For this
// GEMM, many algorithms are about equally fast.
TEST_F(CudaMatmul, KeepsTheChosenAlgorithm) {
  std::set<std::string> choices;
  for (int i = 0; i < 12; ++i) {
    Graph g;
    const Tensor y = matmul(g.input("a", {96, 4096}), g.input("b", {4096, 104}));
    choices.insert(compile(g, {y}, {.device = Device::cuda()}).choice(0));
  }
  EXPECT_EQ(choices.size(), 1) << *choices.begin() << "; " << *choices.rbegin();
  EXPECT_NE(choices.begin()->find("cuBLASLt"), std::string::npos) << *choices.begin();
}

// Computes the gradient of an operand that three GEMMs share. Two of the backward GEMMs add to the result of
// the first. Covers cuBLASLt, the kernels for few rows and the kernel for any strides.
TEST_F(CudaMatmul, AddsProductsToSums) {
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
        const double roundings = t == bf16 || t == f16 ? 8 : 64;  // three results, or 64 additions
        EXPECT_TRUE(close(doubles(got), doubles(expected), roundings * rounding(t))) << z[0].text();
        EXPECT_TRUE(got.same_bits(eval(z, feeds, {.device = Device::cuda()})[0]));
      }
}

// A sum is bitwise identical whether it overwrites its addend or uses other memory.
TEST_F(CudaMatmul, SumsWrittenInPlaceMatchBitwise) {
  for (const DType t : {bf16, f16, f32}) {
    Graph g;
    const Given a = given(g, {320, 24}, t, View::contiguous, 1),
                b = given(g, {24, 16}, t, View::contiguous, 2),
                c = given(g, {320, 16}, t, View::contiguous, 3);
    const Tensor added = softmax(c.tensor, -1), sum = matmul(a.tensor, b.tensor) + added;
    const std::vector<Feed> feeds{a.feed(), b.feed(), c.feed()};
    const CompileOptions options{.device = Device::cuda()};
    const auto place = [&](const Program& p) {  // memory offsets of the sum and of the addend
      for (const Step& s : p.steps())
        if (s.op->name == "matmul" && s.in.size() == 3) return std::pair(s.in[2].data, s.out[0].data);
      return std::pair<std::byte*, std::byte*>();
    };
    Program alone = compile(g, {sum}, options), both = compile(g, {sum, added}, options);
    const auto [from, to] = place(alone);
    const auto [kept, apart] = place(both);
    EXPECT_TRUE(from && from == to) << name_of(t);
    EXPECT_NE(kept, apart) << name_of(t);
    alone.run(feeds), both.run(feeds);
    EXPECT_TRUE(alone.fetch(sum).same_bits(both.fetch(sum))) << name_of(t);
  }
}

// Tests small GEMMs with an addend. Matrices are contiguous along rows or columns. Some are not aligned to 16
// bytes.
TEST_F(CudaMatmul, ComputesGroupedGemms) {
  const std::int64_t sizes[][3] = {{256, 64, 64}, {65, 64, 256}, {1, 1, 1}, {33, 70, 300}, {40, 24, 1000}};
  for (const DType t : {bf16, f16})
    for (const auto& [m, n, k] : sizes)
      for (const bool across_a : {false, true})
        for (const bool across_b : {false, true})
          for (const int added : {0, 1, 2}) {
            Graph g;
            std::vector<Given> all{given(g, across_a ? Shape{k, m} : Shape{m, k}, t, View::contiguous, 1),
                                   given(g, across_b ? Shape{n, k} : Shape{k, n}, t, View::contiguous, 2)};
            const Tensor a = across_a ? transpose(all[0].tensor, 0, 1) : all[0].tensor,
                         b = across_b ? transpose(all[1].tensor, 0, 1) : all[1].tensor;
            if (added > 0)
              all.push_back(given(g, added == 1 ? Shape{n} : Shape{m, n}, t, View::contiguous, 3));
            const Tensor y = added == 0 ? matmul(a, b) : linear(a, b, all[2].tensor);
            const Array expected = eval(y, feeds_of(all)),
                        got = eval(y, feeds_of(all), {.device = Device::cuda()});
            EXPECT_TRUE(close(doubles(got), doubles(expected), 8 * rounding(t)))
                << y.text() << " " << across_a << across_b << added;
          }
}

// If the layout allows it, an addend's row is read four numbers at a time. The layout of these rows does not
// allow it.
TEST_F(CudaMatmul, ComputesGroupedGemmsWithAnAddendInAnyLayout) {
  constexpr std::int64_t m = 40, n = 24;
  for (const DType t : {bf16, f16})
    for (const auto& [columns, first] :
         {std::pair<std::int64_t, std::int64_t>{n + 1, 0}, {n + 1, 1}, {n + 4, 2}, {n + 4, 4}, {n, 0}})
      for (const std::int64_t rows : {m, std::int64_t{1}}) {
        Graph g;
        const Given a = given(g, {m, 64}, t, View::contiguous, 1),
                    b = given(g, {64, n}, t, View::contiguous, 2),
                    d = given(g, {rows, columns}, t, View::contiguous, 3);
        const Tensor y = linear(a.tensor, b.tensor, expand(slice(d.tensor, 1, first, first + n), {m, n}));
        const std::vector<Feed> feeds = feeds_of({a, b, d});
        const Array expected = eval(y, feeds), got = eval(y, feeds, {.device = Device::cuda()});
        EXPECT_TRUE(close(doubles(got), doubles(expected), 8 * rounding(t)))
            << name_of(t) << ", " << rows << " rows of " << columns << " from " << first;
      }
}

// Several GEMMs share a kernel if no step between them reads a GEMM result. The results are bitwise identical
// to separate GEMMs.
TEST_F(CudaMatmul, GroupedGemmsAreOneKernel) {
  for (const DType t : {bf16, f16}) {
    Graph g;
    std::vector<Given> all;
    std::vector<Tensor> ys;
    for (int i = 0; i < 40; ++i) {  // more than one launch
      all.push_back(given(g, {64, 24 + i}, t, View::contiguous, 2 * i + 1));
      all.push_back(given(g, {64, 40}, t, View::contiguous, 2 * i + 2));
      ys.push_back(matmul(transpose(softmax(all[2 * i].tensor, -1), 0, 1), all[2 * i + 1].tensor));
    }
    Program p = compile(g, ys, {.device = Device::cuda()});
    int lists = 0;
    for (std::size_t i = 0; i < p.steps().size(); ++i)
      lists += p.choice(i).find("small products in one kernel") != std::string::npos;
    EXPECT_EQ(lists, is_hopper() ? 2 : 0) << p.text();
    const std::vector<Feed> feeds = feeds_of(all);
    const std::vector<Array> together = eval(ys, feeds, {.device = Device::cuda()});
    for (std::size_t i = 0; i < ys.size(); ++i)
      EXPECT_TRUE(together[i].same_bits(eval(ys[i], feeds, {.device = Device::cuda()}))) << i;
  }
}

// cuBLASLt is called for each index of the first axis, because the matrices are aligned to only 4 bytes.
TEST_F(CudaMatmul, AcceptsBatchesOfAnyAlignment) {
  for (const DType t : {f32, bf16}) {
    Graph g;
    const Given a = given(g, {2, 3 * 24 * 16 + 1}, t, View::contiguous, 1),
                b = given(g, {2, 3 * 16 * 40 + 3}, t, View::contiguous, 2),
                d = given(g, {2, 3 * 24 * 40 + 5}, t, View::contiguous, 3);
    const auto matrices = [](const Given& x, std::int64_t rows, std::int64_t columns) {
      return view(slice(x.tensor, 1, 0, 3 * rows * columns), {2, 3, rows, columns});
    };
    const Tensor y = matmul(matrices(a, 24, 16), matrices(b, 16, 40)) + matrices(d, 24, 40);
    const std::vector<Feed> feeds = feeds_of({a, b, d});
    const Array expected = eval(y, feeds), got = eval(y, feeds, {.device = Device::cuda()});
    EXPECT_TRUE(close(doubles(got), doubles(expected), 16 * rounding(t))) << name_of(t);
  }
}

// Tests operands that cuBLASLt accepts, and strides that only tilegrad's own kernel accepts.
TEST_F(CudaMatmul, Multiplies16BitTypesIntoF32) {
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
