// Tests the CPU backend. Covers copies of few bytes, fetches that wait for a later run, and profiles.
#include "backends/cpu/kernel.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <numeric>

#include <tilegrad/tilegrad.h>

namespace {

using namespace tg;

TEST(CpuBackend, NameMatchesTheProcessor) {
  std::ifstream file("/proc/cpuinfo");
  const std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::string key = "model name\t: ";
  const std::size_t line = all.find(key);
  if (line == std::string::npos) GTEST_SKIP() << "no model name";
  const std::size_t from = line + key.size();
  EXPECT_EQ(cpu::backend().name(), all.substr(from, all.find('\n', from) - from));
}

TEST(CpuBackend, CopiesAnyNumberOfBytes) {
  for (const std::size_t bytes : {0, 1, 2, 63}) {
    std::vector<std::byte> from(64), to(64);
    for (std::size_t i = 0; i < 64; ++i) from[i] = static_cast<std::byte>(i + 1);
    for (const bool writes : {true, false}) {
      std::fill(to.begin(), to.end(), std::byte{0});
      if (writes)
        cpu::backend().write(to.data(), from.data(), bytes);
      else
        cpu::backend().read(to.data(), from.data(), bytes);
      for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(to[i], i < bytes ? from[i] : std::byte{0}) << bytes;
    }
  }
}

// The values come from several runs. Some values have one byte, some are empty, and some have a size that is
// not divisible by 64.
TEST(CpuBackend, KeepsTheValuesOfEachRun) {
  Graph g;
  const Tensor a = g.input("a", {}, u8), b = g.input("b", {3}, u8), c = g.input("c", {0}),
               d = g.input("d", {33});
  const std::vector<Tensor> fetch{a + a, b + 1, less(a, 9), c * 2, d * 3};
  for (const int threads : {1, 2}) {
    Program p = compile(g, fetch, {.threads = threads});
    std::vector<Pending> runs;
    const auto expect_run = [&](const Pending& run, int n) {
      EXPECT_TRUE(run.ready());
      EXPECT_EQ(run.fetch(fetch[0]).at(0), 2 * n);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(run.fetch(fetch[1]).at(i), n + i + 1);
      EXPECT_EQ(run.fetch(fetch[2]).at(0), n < 9 ? 1 : 0);
      EXPECT_EQ(run.fetch(fetch[3]).numel(), 0);
      for (int i = 0; i < 33; ++i) EXPECT_EQ(run.fetch(fetch[4]).at(i), 3 * (n + i));
    };
    for (int n = 7; n < 12; ++n) {
      Array bs({3}, u8), ds({33}, f32), as({}, u8);
      as.set(0, n);
      for (int i = 0; i < 3; ++i) bs.set(i, n + i);
      for (int i = 0; i < 33; ++i) ds.set(i, n + i);
      p.run({{a, as}, {b, bs}, {c, Array({0}, f32)}, {d, ds}});
      runs.push_back(p.fetch_later(fetch));
      if (runs.size() == 3) expect_run(runs[0], n - 2), runs.erase(runs.begin());  // its memory is reused
    }
    for (std::size_t i = 0; i < runs.size(); ++i) expect_run(runs[i], 12 - static_cast<int>(runs.size() - i));
  }
}

// A step's time starts at the end of the previous step. No time is negative. The times add up to the time of
// the run.
TEST(CpuBackend, ProfilesHaveATimeForEachStep) {
  Graph g;
  const Tensor x = g.input("x", {400, 300});
  const Tensor y = cumsum(softmax(cumsum(x, 0)), 1);
  for (const int threads : {1, 3}) {
    Program p = compile(g, {y}, {.threads = threads});
    p.run({{x, Array(x.shape(), f32)}});
    for (int i = 0; i < 3; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      const std::vector<double> seconds = p.profile();
      const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
      ASSERT_EQ(seconds.size(), p.steps().size());
      for (const double s : seconds) EXPECT_GT(s, 0);
      EXPECT_LE(std::accumulate(seconds.begin(), seconds.end(), 0.), all.count());
      p.run();
    }
  }
}

}  // namespace
