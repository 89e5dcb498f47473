// Tests fused pointwise kernels on a GPU. Many of these kernels have several results. Skipped if there is no
// GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numbers>

#include "backends/cuda/cuda.h"
#include "tests/support/random_fused.h"

namespace {

using namespace tg;
using namespace tg::testing;

TEST(CudaFused, FusedMatchesSingleStepsOnTheCpu) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (unsigned seed = 0; seed < 16; ++seed) {
    RandomFused r(seed);
    EXPECT_EQ(
        r.difference({.device = Device::cuda(), .verify = true}, {.device = Device::cpu(), .fuse = false}),
        "")
        << "seed " << seed;
  }
}

// If a program keeps all casts of its parameters, one kernel computes them. Covers any size and both 16-bit
// types.
TEST(CudaFused, CastsOfParametersAreOneKernel) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  const std::vector<std::int64_t> sizes{1, 3, 4, 1023, 4096, 4097, 20000};
  for (const DType t : {bf16, f16}) {
    std::vector<Tensor> got[2];
    std::vector<Array> values[2];
    for (const bool on_gpu : {false, true}) {
      const Device device = on_gpu ? Device::cuda() : Device::cpu();
      Graph g;
      for (const std::int64_t n : sizes) {
        Array a({n}, f32);
        for (std::int64_t i = 0; i < n; ++i)
          a.set(i,
                std::ldexp(static_cast<double>(i * 7919 % 1009) / 1009 - 0.5, static_cast<int>(i % 30) - 20));
        got[on_gpu].push_back(cast(g.param(Parameter("p" + std::to_string(n), a, device)), t));
      }
      Program p = compile(g, got[on_gpu], {.device = device});
      p.run();
      for (const Tensor& y : got[on_gpu]) values[on_gpu].push_back(p.fetch(y));
      if (!on_gpu) continue;
      EXPECT_NE(p.choice(0).find("7 casts in one kernel"), std::string::npos) << p.choice(0);
      EXPECT_EQ(p.choice(1), "done by the previous step");
    }
    for (std::size_t i = 0; i < sizes.size(); ++i)
      EXPECT_TRUE(values[1][i].same_bits(values[0][i])) << name_of(t) << " " << sizes[i];
  }
}

// Small elementwise steps and the sums between them run in one kernel with one block. Covers any compute
// type.
TEST(CudaFused, HorizontalFusionIsOneKernel) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const std::int64_t n : {1, 31, 256, 4096}) {
    Graph g;
    const Tensor targets = g.input("targets", {n}, i32), losses = g.input("losses", {n}, f32),
                 weights = g.input("weights", {n}, f64);
    const Tensor count = maximum(sum(cast(not_equal(targets, -100), f32)), 1), mean = sum(losses) / count,
                 share = losses * (1 / count), of_weights = cast(sum(weights), f32) + mean;
    Array t({n}, i32), l({n}, f32), w({n}, f64);
    for (std::int64_t i = 0; i < n; ++i)
      t.set(i, i % 3 == 0 ? -100 : 5), l.set(i, static_cast<double>(i % 8) / 8),
          w.set(i, static_cast<double>(i % 5));
    const std::vector<Tensor> ts{mean, share, of_weights, transpose(reshape(share, {n, 1}), 0, 1) + 1};
    const std::vector<Feed> feeds{{targets, t}, {losses, l}, {weights, w}};
    const auto expected = eval(ts, feeds, {.device = Device::cpu()}),
               got = eval(ts, feeds, {.device = Device::cuda(), .verify = true});
    for (std::size_t i = 0; i < ts.size(); ++i)
      for (std::int64_t k = 0; k < ts[i].numel(); ++k)
        EXPECT_NEAR(got[i].to(f64).values<double>()[static_cast<std::size_t>(k)],
                    expected[i].to(f64).values<double>()[static_cast<std::size_t>(k)], 1e-6)
            << n << " result " << i << " at " << k;
    const Program p = compile(g, ts, {.device = Device::cuda()});
    int kernels = 0;
    for (std::size_t i = 0; i < p.steps().size(); ++i)
      kernels += p.choice(i).find("done by") == std::string::npos;
    EXPECT_EQ(kernels, 1) << p.text();
    EXPECT_NE(p.choice(0).find("steps in one kernel (horizontal fusion)"), std::string::npos) << p.choice(0);
  }
}

// A sum is bitwise identical in a separate kernel and in a kernel with longer steps.
TEST(CudaFused, ASmallSumMatchesBitwiseNextToLongerSteps) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const std::int64_t n : {33, 100, 1000}) {
    Graph g;
    const Tensor x = g.input("x", {n}, f32), y = g.input("y", {4096}, f32), alone = sum(x),
                 beside = sum(x) * 1, longer = exp(y) + sum(y);
    Array xs({n}, f32), ys({4096}, f32);
    for (Array* a : {&xs, &ys})
      for (std::int64_t i = 0; i < a->numel(); ++i) a->set(i, std::sin(static_cast<double>(i * i % 1009)));
    const std::vector<Feed> feeds{{x, xs}, {y, ys}};
    const auto together = eval({beside, longer}, feeds, {.device = Device::cuda()});
    EXPECT_TRUE(eval(alone, feeds, {.device = Device::cuda()}).same_bits(together[0])) << n;
  }
}

// Two kinds of steps stay separate kernels: long steps, and sums of batch-invariant programs. These sums have
// a fixed order.
TEST(CudaFused, OtherStepsAreSeparateKernels) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const auto& [n, alone] : {std::pair{4097, false}, {64, true}}) {
    Graph g;
    const Tensor x = g.input("x", {n}, f32), y = sum(x * x) + 1;
    const Program p = compile(g, {y}, {.device = Device::cuda(), .batch_invariant = alone});
    for (std::size_t i = 0; i < p.steps().size(); ++i)
      EXPECT_EQ(p.choice(i).find("horizontal fusion"), std::string::npos) << p.choice(i);
  }
}

// A list cannot contain casts of other dtypes or a cast of a part of a parameter. Such casts are separate
// steps.
TEST(CudaFused, OtherCastsAreSeparateSteps) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  Graph g;
  const Parameter a("a", Array({64}, f32), Device::cuda()), b("b", Array({64}, f16), Device::cuda());
  Program p = compile(g, {cast(g.param(a), bf16), cast(g.param(b), bf16), cast(g.param(a), f16)}, {});
  for (std::size_t i = 0; i < p.steps().size(); ++i)
    EXPECT_EQ(p.choice(i).find("casts in one"), std::string::npos) << i << ": " << p.choice(i);
}

// Covers every element size. Tiles are complete or partial, and can be one vector or single elements.
TEST(CudaFused, TransposesOperandsThatAreContiguousAcrossRows) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const DType t : {f32, bf16, f64, i64, i32, f16, u8, boolean})
    for (const Shape& shape : {Shape{2, 136, 260}, Shape{3, 67, 45}, Shape{1, 20, 200}}) {
      Graph g;
      const Tensor x = g.input("x", shape, t), row = g.input("row", {shape[1]}, t),
                   y = g.input("y", {shape[0], shape[2], shape[1]}, t), transposed = transpose(x, 1, 2);
      Array xs(shape, t), ys(y.shape(), t), rows(row.shape(), t);
      for (Array* a : {&xs, &ys, &rows})
        for (std::int64_t i = 0; i < a->numel(); ++i)
          a->set(i, static_cast<double>(i * i % (t == boolean ? 2 : 11)));
      const Tensor column = slice(y, 2, 0, 1), mixed = where(equal(transposed, row), y, column);
      const std::vector<Tensor> ts{contiguous(transposed),
                                   transpose(contiguous(permute(x, {2, 0, 1})), 0, 1),
                                   contiguous(slice(transposed, 1, 3, shape[2])),
                                   mixed,
                                   where(equal(y, permute(permute(x, {0, 2, 1}), {0, 1, 2})), transposed, y),
                                   cast(mixed, f32) + transposed};
      const std::vector<Feed> feeds{{x, xs}, {y, ys}, {row, rows}};
      const auto expected = eval(ts, feeds, {.device = Device::cpu()});
      for (const bool together : {true, false})
        for (std::size_t i = 0; i < ts.size(); ++i) {
          const std::vector<Tensor> asked = together ? ts : std::vector{ts[i]};
          if (together && i > 0) break;
          const auto got = eval(asked, feeds, {.device = Device::cuda(), .verify = true});
          for (std::size_t k = 0; k < got.size(); ++k)
            EXPECT_TRUE(got[k].same_bits(expected[together ? k : i]))
                << name_of(t) << shape.text() << " " << i + k;
        }
    }
}

TEST(CudaFused, TransposesSeveralOperandsAndOverwritesOne) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  Graph g;
  const Tensor x = g.input("x", {130, 70}), y = g.input("y", {130, 70}), z = g.input("z", {70, 130});
  const Tensor s = softmax(z, -1) * 0 + z;  // the step is the last reader of softmax's result
  const Tensor a = s + transpose(x, 0, 1) * transpose(y, 0, 1), b = s - transpose(x, 0, 1);
  Array xs({130, 70}, f32), ys({130, 70}, f32), zs({70, 130}, f32);
  for (Array* v : {&xs, &ys, &zs})
    for (std::int64_t i = 0; i < v->numel(); ++i) v->set(i, static_cast<double>(i * 7 % 13) - 6);
  const Tensor four = a + transpose(x + 1, 0, 1) * transpose(abs(y), 0, 1);  // transposed in smaller tiles
  const std::vector<Feed> feeds{{x, xs}, {y, ys}, {z, zs}};
  for (const std::vector<Tensor>& ts : {std::vector{a, b}, {four, x + 1, abs(y)}}) {
    const auto expected = eval(ts, feeds, {.device = Device::cpu(), .fuse = false});
    const auto got = eval(ts, feeds, {.device = Device::cuda(), .verify = true});
    for (std::size_t i = 0; i < ts.size(); ++i) EXPECT_TRUE(got[i].same_bits(expected[i])) << i;
  }
}

// Compares gelu, gelu_tanh and their derivatives with f64 for every 16-bit number.
TEST(CudaFused, GelusOf16Bits) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  const auto lower = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.)); };
  const auto gate = [](double x) {
    return 1 / (1 + std::exp(-std::sqrt(8 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
  };
  const auto gate_slope = [&](double x) {
    return gate(x) * gate(-x) * std::sqrt(8 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
  };
  struct Case {
    const char* name;
    Tensor (*function)(TensorArg);
    std::function<double(double)> exact;
    double error;  // the error is below the larger of 0.1 units in the last place and this
  };
  const Case cases[] = {
      {"gelu", &gelu, [&](double x) { return x * lower(x); }, 1e-8},
      {"gelu_slope", &gelu_slope,
       [&](double x) { return lower(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }, 3e-5},
      {"gelu_tanh", &gelu_tanh, [&](double x) { return x * gate(x); }, 1e-8},
      {"gelu_tanh_slope", &gelu_tanh_slope, [&](double x) { return gate(x) + x * gate_slope(x); }, 3e-5}};
  for (const DType t : {bf16, f16}) {
    Array all({1 << 16}, t);
    for (int i = 0; i < 1 << 16; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      std::memcpy(all.raw() + 2 * i, &bits, 2);
    }
    const int digits = t == bf16 ? 8 : 11, least = t == bf16 ? -126 : -14;
    for (const Case& c : cases) {
      Graph g;
      const Tensor x = g.input("x", all.shape(), t);
      const Array got = eval(c.function(x), {{x, all}}, {.device = Device::cuda()});
      int wrong = 0;
      for (std::int64_t i = 0; i < got.numel(); ++i) {
        const double of = all.at(i), is = got.at(i);
        if (std::isnan(of) ? std::isnan(is) : std::isinf(of)) continue;
        const double expected = c.exact(of);
        const double last =
            std::ldexp(1, std::max(expected == 0 ? least : std::ilogb(expected), least) - digits + 1);
        if (std::abs(is - expected) <= 0.6 * last + c.error) continue;
        if (++wrong <= 5)
          ADD_FAILURE() << name_of(t) << ": " << c.name << "(" << of << ") is " << expected << ", not " << is;
      }
      EXPECT_EQ(wrong, 0) << c.name;
    }
  }
}

// Compares powers of every base with C's pow in f64. The error must be within 0.1 units in the last place
// after rounding. Exponents are integers, fractions, large or not finite.
TEST(CudaFused, PowersOf16Bits) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> exponents{0,   -0., 1,   -1,  2,    3,     -3,    0.5,   -0.5, 0.0546875, 2.75,
                                      -17, 100, 255, 256, -512, 20000, 16000, -9984, inf,  -inf,      nan};
  constexpr int bases = 1 << 16;
  const auto n = static_cast<std::int64_t>(exponents.size());
  for (const DType t : {bf16, f16}) {
    Graph g;
    const Tensor a = g.input("a", {bases, 1}, t), b = g.input("b", {n}, t);
    Array as(a.shape(), t), bs(b.shape(), t);
    for (int i = 0; i < bases; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      std::memcpy(as.raw() + 2 * i, &bits, 2);
    }
    for (std::int64_t i = 0; i < n; ++i) bs.set(i, exponents[static_cast<std::size_t>(i)]);
    const Array got = eval(pow(a, b), {{a, as}, {b, bs}}, {.device = Device::cuda()});

    const int digits = t == bf16 ? 8 : 11, least = t == bf16 ? -126 : -14, most = t == bf16 ? 127 : 15;
    const double beyond = std::ldexp(1, most + 1);  // the next power of two
    int wrong = 0;
    for (std::int64_t i = 0; i < got.numel(); ++i) {
      const double x = as.at(i / n), y = bs.at(i % n), expected = std::pow(x, y), is = got.at(i);
      if (std::isnan(expected) && std::isnan(is)) continue;
      const double last = std::ldexp(1, std::clamp(std::ilogb(expected), least, most) - digits + 1);
      const double apart =
          std::abs(std::clamp(is, -beyond, beyond) - std::clamp(expected, -beyond, beyond)) / last;
      if (apart <= 0.6 && std::signbit(is) == std::signbit(expected)) continue;
      if (++wrong <= 10)
        ADD_FAILURE() << name_of(t) << ": " << x << " ^ " << y << " is " << expected << ", not " << is;
    }
    EXPECT_EQ(wrong, 0);
  }
}

// For huge and infinite numbers, the polynomials in the formulas overflow. The suite Extremes in
// pointwise_test covers these limits.
TEST(CudaFused, DerivativesOfHugeNumbersMatchTheCpu) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  const std::vector<double> at{1e3, -1e3, 2e13, -2e13, 1e20, -1e20, 3e38, -3e38, INFINITY, -INFINITY};
  for (Tensor (*f)(TensorArg) : {tanh, erf, sigmoid, relu, silu, gelu, gelu_tanh})
    for (const DType t : {f64, f32, bf16, f16}) {
      Graph g;
      const Tensor x = g.input("x", {static_cast<std::int64_t>(at.size())}, t);
      Array values(x.shape(), t);
      for (std::size_t i = 0; i < at.size(); ++i) values.set(static_cast<std::int64_t>(i), at[i]);
      std::vector<Tensor> all{f(x)};
      while (all.size() < 4) all.push_back(gradients(sum(all.back()), {x})[0]);
      const auto on_cpu = eval(all, {{x, values}}),
                 on_gpu = eval(all, {{x, values}}, {.device = Device::cuda()});
      for (std::size_t order = 0; order < all.size(); ++order)
        for (std::int64_t i = 0; i < x.numel(); ++i) {
          const double expected = on_cpu[order].at(i), got = on_gpu[order].at(i);
          EXPECT_TRUE(got == expected || std::abs(got - expected) < 1e-28)  // gelu(−20)
              << name_of(t) << " " << at[static_cast<std::size_t>(i)] << " order " << order << ": " << got
              << ", on the CPU " << expected;
        }
    }
}

}  // namespace
