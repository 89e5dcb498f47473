// Tests that random ops draw bitwise identical numbers on a GPU and on the CPU. Skipped if there is no GPU.
#include <tilegrad/ops/flash_attn.h>
#include "backends/cuda/cuda.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

class CudaRandom : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

// Runs two steps of the same program on both devices.
void expect_same_bits(Graph& g, const std::vector<Tensor>& ts, const std::vector<Feed>& feeds = {}) {
  Program host = compile(g, ts, {.device = Device::cpu()}), gpu = compile(g, ts, {.device = Device::cuda()});
  for (Program* p : {&host, &gpu}) p->seed(0x123456789abcdef0u);
  for (int step = 0; step < 2; ++step) {
    host.run(feeds);
    gpu.run(feeds);
    for (std::size_t i = 0; i < ts.size(); ++i)
      EXPECT_TRUE(host.fetch(ts[i]).same_bits(gpu.fetch(ts[i]))) << "result " << i << " in step " << step;
  }
}

// Some sizes end inside a block of words. One size exceeds the number of threads on a GPU.
const Shape shapes[] = {{1}, {3, 5, 7}, {0, 3}, {1023}, {1 << 21}};

TEST_F(CudaRandom, FillsMatchTheCpu) {
  for (const Shape& shape : shapes)
    for (DType t : float_dtypes) {
      Graph g;
      expect_same_bits(
          g, {uniform(g, shape, -0.1, 0.7, t), normal(g, shape, 0.3, 1.7, t), normal(g, shape, 0, 0.02, t)});
    }
}

// In some intervals, rounding could give a number outside the interval. The width of another interval exceeds
// the range of f64.
TEST_F(CudaRandom, IntervalsMatchTheCpu) {
  for (DType t : float_dtypes) {
    Graph g;
    expect_same_bits(
        g, {uniform(g, {100000}, 0, 1, t), uniform(g, {100000}, 1, 2, t), uniform(g, {1000}, 3, 3.03, t)});
  }
  Graph g;
  expect_same_bits(g, {uniform(g, {1000}, -1.7e308, 1.7e308, f64)});
}

TEST_F(CudaRandom, IntegersMatchTheCpu) {
  for (const Shape& shape : shapes) {
    Graph g;
    std::vector<Tensor> ts{bernoulli(g, shape, 0.3), bernoulli(g, shape, 1)};
    for (DType t : {i64, i32}) ts.push_back(randint(g, shape, -5, 1000003, t));
    ts.push_back(randint(g, shape, 0, 256, u8));
    ts.push_back(randint(g, shape, -(std::int64_t{1} << 53), std::int64_t{1} << 53, i64));
    expect_same_bits(g, ts);
  }
}

TEST_F(CudaRandom, DropoutMatchesTheCpu) {
  for (DType t : float_dtypes)
    for (View view : all_views) {
      Graph g;
      const Given x = given(g, {37, 3, 53}, t, view);
      expect_same_bits(g, {dropout(x.tensor, 0.3), dropout(x.tensor, 0.999)}, {x.feed()});
    }
  Graph g;
  const Given x = given(g, {1 << 21}, bf16);
  expect_same_bits(g, {dropout(x.tensor, 0.1)}, {x.feed()});
}

TEST_F(CudaRandom, AttentionDropoutMatchesTheCpu) {
  Graph g;
  const Tensor state = g.rng();
  expect_same_bits(
      g,
      {attention_keep_mask(state, {2, 3, 5, 7}, 0.3, 3), attention_keep_mask(state, {2, 2, 64, 256}, 0.1, 4),
       attention_keep_mask(state, {1, 1, 1, 41}, 0.5, 5), attention_keep_mask(state, {1, 3, 1, 4099}, 0.2, 6),
       attention_keep_mask(state, {3, 5, 7, 1}, 0.5, 7)});
}

}  // namespace
