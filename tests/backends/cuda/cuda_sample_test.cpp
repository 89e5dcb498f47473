// Tests that `sample` on a GPU draws exactly the same tokens as nn::sample_token. Skipped if there is no GPU.
#include "backends/cuda/cuda.h"
#include "tests/support/sampled_rows.h"

namespace {

using namespace tg;
using namespace tg::testing;

class CudaSample : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(CudaSample, DrawsTheTokensOfSampleToken) {
  expect_rows_of_every_kind({.device = Device::cuda()}, 40, {1, 2, 3, 17, 64, 300});
  expect_rows_of_every_kind({.device = Device::cuda()}, 8, {5000});
}

TEST_F(CudaSample, AcceptsRowsAsLongAsAVocabulary) {
  std::mt19937_64 random(5);
  std::vector<SampledRow> rows = random_rows(random, 3, 50257);
  for (SampledRow& row : rows) row.sampling = {.temperature = 0.8, .top_p = 0.95};
  rows[0].sampling.top_p = 1, rows[1].sampling.top_k = 50;
  expect_sampled(rows, true, {.device = Device::cuda()});
}

// Without top_k and top_p, a row of more than 4,096 logits is sampled in two steps. The first step selects a
// piece of the row, and the second selects a token in this piece. In one row, the middle piece has the whole
// weight.
TEST_F(CudaSample, DrawsFromPiecesOfARow) {
  std::mt19937_64 random(11);
  std::vector<SampledRow> rows = random_rows(random, 8, 3 * 4096 + 5);
  for (SampledRow& row : rows) row.sampling = {.temperature = 4};
  rows[0].sampling.temperature = 0;
  rows[1].logits[2 * 4096 - 1] = 1e6;
  for (std::size_t r = 2; r < rows.size(); ++r)
    for (std::size_t i = 0; i < rows[r].logits.size(); ++i)
      rows[r].logits[i] = static_cast<float>(i * (r + 7) % 13) / 4;
  expect_sampled(rows, false, {.device = Device::cuda()});
}

TEST_F(CudaSample, DrawsFromLogitsOfEveryDtype) {
  std::mt19937_64 random(3);
  std::vector<SampledRow> rows = random_rows(random, 20, 50);
  for (SampledRow& row : rows)
    for (float& x : row.logits) x = static_cast<float>(bfloat16(std::clamp(x, -100.f, 100.f)));
  for (const DType dtype : {f64, bf16}) expect_sampled(rows, true, {.device = Device::cuda()}, dtype);
}

TEST_F(CudaSample, AcceptsViews) {
  Graph g;
  const Tensor x = g.input("x", {5, 3}), keys = g.input("keys", {2, 3}, i64);
  const std::vector<float> logits{0, 1, 2, 3, 4, 9, 1, 1, 1, 2, 0, 3, 7, 7, 0};
  const Tensor drawn = sample(x.transpose(0, 1), 0.5, keys.transpose(0, 1), 4, 0.9);
  const std::vector<Feed> feeds{{x, logits},
                                {keys, Array::of({2, 3}, std::vector<std::int64_t>{1, 2, 3, 4, 5, 6})}};
  EXPECT_TRUE(eval(drawn, feeds, {.device = Device::cuda()}).same_bits(eval(drawn, feeds)));
}

}  // namespace
