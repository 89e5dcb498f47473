// Tests that feeding, running and reading programs on a GPU does not wait. Skipped if there is no GPU.
#include <chrono>

#include <tilegrad/autograd/custom_op.h>
#include <tilegrad/nn/layers/params.h>
#include "backends/cuda/cuda.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

class CudaProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

constexpr int runs = 8;

TEST_F(CudaProgram, KeepsTheResultsOfEveryRunAndAcceptsFeedsImmediately) {
  Graph g;
  const Tensor x = g.input("x", {300}, f64), k = g.input("k", {}, f32);
  const Tensor y = x * k.to(f64), total = sum(y), transposed = transpose(y.reshape({100, 3}), 0, 1) + 1;
  Program p = compile(g, {total, k, y, transposed}, {.device = Device::cuda()});
  std::vector<double> xs(300);
  std::vector<float> ks(1);
  std::vector<Pending> all;
  for (int n = 0; n < runs; ++n) {
    for (int i = 0; i < 300; ++i) xs[static_cast<std::size_t>(i)] = n + i;
    ks[0] = static_cast<float>(n);
    p.run({{x, xs}, {k, ks}});
    all.push_back(p.fetch_later({total, transposed, k, y}));
  }
  for (int n : {3, 0, 7, 1, 2, 6, 5, 4}) {
    const Pending& now = all[static_cast<std::size_t>(n)];
    EXPECT_EQ(now.item<double>(total), n * (300.0 * n + 300 * 299 / 2)) << n;
    EXPECT_EQ(now.number(k), n);
    EXPECT_EQ(now.fetch(y).at(299), n * (n + 299.0));
    EXPECT_EQ(now.fetch(transposed).at(101), n * (n + 4.0) + 1);  // [1, 1]: element [1, 1] of [100, 3]
  }
}

TEST_F(CudaProgram, AcceptsInputsOfAnySizeInAnyOrder) {
  constexpr std::int64_t many = 5'000'003, stride = 997;  // 20 MB: more than the staging memory
  Graph g;
  const Tensor small = g.input("small", {1}), bytes = g.input("bytes", {67}, u8),
               odd = g.input("odd", {1001}, f64), large = g.input("large", {many});
  const std::vector<Tensor> ts{small + 0, bytes.to(i32), odd * 1, slice(large, 0, 0, many, stride) + 1,
                               normal(g, {4}, 0, 1, f32)};
  Program p = compile(g, ts, {.device = Device::cuda()}), host = compile(g, ts, {.device = Device::cpu()});
  for (const bool backwards : {false, true})
    for (int n = 0; n < 3; ++n) {
      Array a({1}, f32), b({67}, u8), c({1001}, f64), d({many}, f32);
      for (Array* x : {&a, &b, &c})
        for (std::int64_t i = 0; i < x->numel(); ++i) x->set(i, static_cast<double>((i * 7 + n) % 100));
      for (std::int64_t i = 0; i < many; i += stride) d.set(i, static_cast<double>(i + n));
      std::vector<Feed> feeds{{small, a}, {bytes, b}, {odd, c}, {large, d}};
      if (backwards) std::reverse(feeds.begin(), feeds.end());
      p.run(feeds);
      host.run(feeds);
      const Pending now = p.fetch_later(ts);
      for (const Tensor& t : ts)
        EXPECT_TRUE(now.fetch(t).same_bits(host.fetch(t))) << t.text() << " in run " << n;
    }
}

TEST_F(CudaProgram, IsCompiledDuringTheRunOfAnother) {
  Graph g;
  const Tensor x = g.input("x", {64, 64});
  Tensor y = x;
  for (int n = 0; n < 200; ++n) y = matmul(y, x);
  Program p = compile(g, {y}, {.device = Device::cuda()});
  p.run({{x, std::vector<float>(64 * 64, 1.f / 64)}});
  const Pending pending = p.fetch_later({y});
  pending.ready();  // the result is not ready; the next call must not report this
  Graph other;
  const Tensor k = other.input("k", {3});
  const std::vector<float> ks{1, 2, 3};
  EXPECT_EQ(eval(k + 1, {{k, ks}}, {.device = Device::cuda()}).values<float>(),
            (std::vector<float>{2, 3, 4}));
  EXPECT_NEAR(pending.fetch(y).at(0), 1. / 64, 1e-6);
}

// The program reads rows of a table by index. It counts runs in a parameter.
struct Lookup {
  Parameter count{"count", Array(Shape{1}, f32), Device::cuda()};
  Graph g;
  Tensor index = g.input("index", {1}, i32), table = g.input("table", {10});
  Tensor row = index_select(table, 0, index);
  Tensor more = g.param(count) + row * 0 + 1;
  Program p = compile(g, {row}, {.assign = {{count, more}}, .device = Device::cuda()});

  Lookup() { p.feed({table, std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}); }
  Pending run(int i) {
    p.run({{index, std::vector<std::int32_t>{i}}});
    return p.fetch_later({row});
  }
};

TEST_F(CudaProgram, AFaultIsReportedByItsRunAndByRunsStartedBeforeTheReport) {
  Lookup l;
  const Pending good = l.run(4), bad = l.run(11), after = l.run(5);
  EXPECT_EQ(good.item<float>(l.row), 4);
  for (int time = 0; time < 2; ++time)
    for (const Pending* p : {&bad, &after})
      expect_error<Error>([&] { p->item<float>(l.row); },
                          {"index_select", "index 11", "0 to 9", "(cuda_program_test.cpp:"});
  EXPECT_EQ(l.count.read().at(0), 1);
  EXPECT_EQ(l.run(6).item<float>(l.row), 6);
  EXPECT_EQ(l.count.read().at(0), 2);
}

TEST_F(CudaProgram, AFaultIsReportedByTheNextReadOfAnyValue) {
  Lookup l;
  l.run(-1);
  expect_error<Error>([&] { l.count.read(); }, {"index -1"});
  EXPECT_EQ(l.count.read().at(0), 0);
  l.run(12);
  expect_error<Error>([&] { l.p.fetch(l.row); }, {"index 12"});
  l.p.feed({l.index, std::vector<std::int32_t>{13}});
  expect_error<Error>([&] { l.p.profile(); }, {"index 13"});
  EXPECT_EQ(l.run(3).item<float>(l.row), 3);
  EXPECT_EQ(l.count.read().at(0), 1);
}

TEST_F(CudaProgram, AnExceptionOfAUserFunctionIsReportedAndNothingIsAssigned) {
  const CustomOp op = register_host_op({.name = "throws_below_0", .forward = [](auto in, auto out) {
                                          const double x = in[0].at(0);
                                          if (x < 0)
                                            throw std::runtime_error("below 0: " + std::to_string(x));
                                          out[0].set(0, 2 * x);
                                        }});
  Parameter last("last", Array(Shape{1}, f32), Device::cuda());
  Graph g;
  const Tensor x = g.input("x", {1}), y = op(x), next = y + 1;
  Program p = compile(g, {y}, {.assign = {{last, next}}, .device = Device::cuda()});
  const auto run = [&](float v) {
    p.run({{x, std::vector<float>{v}}});
    return p.fetch_later({y});
  };
  const Pending good = run(3), bad = run(-5), after = run(4);
  EXPECT_EQ(good.item<float>(y), 6);
  for (const Pending* b : {&bad, &after})
    expect_error<std::runtime_error>([&] { b->wait(); }, {"below 0: -5"});
  EXPECT_EQ(last.read().at(0), 7);
  EXPECT_EQ(run(10).item<float>(y), 20);
  EXPECT_EQ(last.read().at(0), 21);
}

TEST_F(CudaProgram, ResultsBecomeReadyWithoutAWait) {
  Graph g;
  const Tensor x = g.input("x", {300}, f32), y = x + 1;
  Program p = compile(g, {y}, {.device = Device::cuda()});
  p.run({{x, std::vector<float>(300, 2)}});
  const Pending later = p.fetch_later({y});
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!later.ready()) ASSERT_LT(std::chrono::steady_clock::now(), end);
  EXPECT_EQ(later.fetch(y).at(299), 3);
  EXPECT_TRUE(later.ready());
}

// The steps run one after another. So the sum of step times is at most the time of the call. Each emulated
// step takes a microsecond.
TEST_F(CudaProgram, TimesStepsInSeconds) {
  Graph g;
  const Tensor x = g.constant(Array({64, 64}, f32)), y = sum(exp(matmul(x, x)), {0});
  Program p = compile(g, {y}, {.device = Device::cuda()});
  p.profile();
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<double> seconds = p.profile();
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
  ASSERT_EQ(seconds.size(), p.steps().size());
  double total = 0;
  for (const double s : seconds) {
    EXPECT_GE(s, 0);
#ifdef TG_RACE_RUNS
    EXPECT_NEAR(s, 1e-6, 1e-9);
#endif
    total += s;
  }
  EXPECT_LE(total, all.count());
}

TEST_F(CudaProgram, AllocatesNoMemoryBeyondItsPlan) {
  Lookup l;
  Backend& gpu = backend(Device::cuda());
  l.run(1).wait();  // allocates staging memory and loads kernels
  const std::size_t before = gpu.available_bytes();
  for (int i = 0; i < 10; ++i) l.run(i).wait();
  EXPECT_EQ(gpu.available_bytes(), before);
}

// Each tensor has 17 GB. Pointwise ops, a copy, a selection, a sum and a maximum must count beyond 2³¹
// elements.
TEST_F(CudaProgram, SupportsMoreThanTwoToThe31Elements) {
  const std::int64_t n = (std::int64_t{1} << 31) + 1000;
  if (backend(Device::cuda()).available_bytes() < std::size_t{60} << 30)
    GTEST_SKIP() << "less than 60 GiB free";
  Graph g;
  const Tensor x = arange(g, 0, static_cast<double>(n)), y = x * 3 - 7,
               moved = contiguous(transpose(y.reshape({n / 8, 8}), 0, 1)),
               chosen = index_select(y, 0, arange(g, static_cast<double>(n - 3), static_cast<double>(n)));
  const auto got =
      eval({slice(y, 0, n - 2, n) + 0, sum(y), max(y), chosen, slice(moved.reshape({n}), 0, n - 2, n) + 0},
           {}, {.device = Device::cuda()});
  EXPECT_EQ(got[0].at(1), static_cast<double>(3 * (n - 1) - 7));
  EXPECT_EQ(got[1].data<std::int64_t>()[0], 3 * (n * (n - 1) / 2) - 7 * n);
  EXPECT_EQ(got[2].at(0), static_cast<double>(3 * (n - 1) - 7));
  EXPECT_EQ(got[3].at(2), static_cast<double>(3 * (n - 1) - 7));
  EXPECT_EQ(got[4].at(0), static_cast<double>(3 * (n - 9) - 7));
}

}  // namespace
