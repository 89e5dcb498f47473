// Tests Engine on a GPU. Each sequence must be bitwise identical to the same sequence in a batch of one. In
// f32, the tokens must equal the CPU's tokens. Skipped if there is no GPU.
#include <gtest/gtest.h>

#include "backends/cuda/cuda.h"
#include "tests/support/engine_requests.h"

namespace {

using namespace tg;
using namespace tg::testing;

class CudaEngine : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(CudaEngine, SequencesMatchABatchOfOne) {
  for (const Kind& kind : engine_kinds(64))
    for (const nn::Precision precision : {nn::Precision::full, nn::Precision::bf16}) {
      nn::Params params(1, f32, Device::cuda());
      const nn::Model model(params, kind.config);
      const auto list = requests(8, 7);
      const std::vector<Written> expected = alone(model, list, precision);
      for (const nn::Engine::Options& options :
           {nn::Engine::Options{.slots = 8, .precision = precision},
            {.slots = 8, .precision = precision, .ahead = false},
            {.slots = 3, .cache_tokens = 112, .page_size = 16, .chunk = 7, .precision = precision},
            {.slots = 8, .cache_tokens = 112, .host_tokens = 200, .precision = precision}}) {
        nn::Engine engine(model, options);
        const std::vector<Written> got = together(engine, list);
        for (std::size_t i = 0; i < list.size(); ++i) {
          EXPECT_EQ(got[i].tokens, expected[i].tokens) << kind.name << ", request " << i;
          EXPECT_TRUE(got[i].logits == expected[i].logits) << kind.name << ", request " << i;
        }
      }
      if (precision != nn::Precision::full) continue;
      nn::Params on_cpu(1);
      const nn::Model same(on_cpu, kind.config);
      const std::vector<Written> plain = alone(same, list);
      for (std::size_t i = 0; i < list.size(); ++i)
        EXPECT_EQ(expected[i].tokens, plain[i].tokens) << kind.name << ", request " << i;
    }
}

}  // namespace
