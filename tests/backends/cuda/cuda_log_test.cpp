// Tests TG_LOG on a GPU. Covers the reported times and kernels of steps. Results must not change.
// log_test.cpp tests the levels. Skipped if there is no GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include <tilegrad/tilegrad.h>
#include "backends/cuda/cuda.h"
#include "tests/support/lines.h"

namespace {

using namespace tg;
using tg::testing::lines_with;

Array numbers(const Shape& shape) {
  Array a(shape, bf16);
  for (std::int64_t i = 0; i < a.numel(); ++i) a.set(i, std::sin(static_cast<double>(i * i % 1009)));
  return a;
}

TEST(CudaLog, ReportsStepsKernelsAndTimesWithoutChangingResults) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  Graph g;
  const Tensor x = g.input("x", {1, 2, 200, 16}, bf16), w = g.input("w", {16, 16}, bf16);
  const Tensor o = flash_attn(x, x, x, {.causal = true}).o;
  const Tensor h = gelu_tanh(linear(reshape(o, {400, 16}), w));
  const Tensor z = gradients(sum(o.to(f32)), {x})[0], y = sum(exp(h.to(f32)) * 2);
  std::vector<Array> plain;
  for (const char* level : {"0", "1", "4"}) {
    setenv("TG_LOG", level, 1);
    ::testing::internal::CaptureStderr();
    Program p = compile(g, {y, z, h}, {.device = Device::cuda()});
    for (int n = 0; n < 2; ++n) p.run({{x, numbers({1, 2, 200, 16})}, {w, numbers({16, 16})}});
    const std::vector<Array> got{p.fetch(y), p.fetch(z)};
    const std::string text = ::testing::internal::GetCapturedStderr();
    unsetenv("TG_LOG");
    if (plain.empty()) plain = got;
    EXPECT_TRUE(got[0].same_bits(plain[0]) && got[1].same_bits(plain[1])) << level;
    const auto steps = static_cast<int>(p.steps().size());
    EXPECT_EQ(lines_with(text, {"] cuda: ", " nodes, ", "compiled in "}), *level > '0') << text;
    EXPECT_EQ(lines_with(text, {"] run ", " ms"}), *level > '0' ? 2 : 0) << text;
    EXPECT_EQ(lines_with(text, {"] step ", " µs", " GB/s"}), *level > '1' ? 2 * steps : 0) << text;
    if (*level < '4') continue;
    EXPECT_EQ(lines_with(text, {"flash_attn: sm_", ", tensor cores"}), 1) << text;
    EXPECT_EQ(lines_with(text, {"flash_attn_backward: sm_", ", tensor cores"}), 1) << text;
    EXPECT_EQ(lines_with(text, {"matmul: sm_", ", cuBLASLt algorithm ", " tile ", ", with gelu_tanh"}), 1)
        << text;
    EXPECT_EQ(lines_with(text, {"gelu_tanh: done by the previous step"}), 1) << text;
    EXPECT_EQ(lines_with(text, {"compiled by NVRTC, ", "→ exp("}), 1) << text;
    EXPECT_EQ(lines_with(text, {"] step ", ": sm_"}), steps - 1) << text;
  }
}

}  // namespace
