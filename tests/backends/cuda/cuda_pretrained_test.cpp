// Loads models from Hugging Face folders. Compares their results on a GPU with the results of transformers.
// Skipped if there is no GPU.
#include <gtest/gtest.h>

#include "backends/cuda/cuda.h"
#include "tests/support/golden_models.h"

namespace {

using namespace tg;
using namespace tg::testing;

class CudaPretrained : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_P(CudaPretrained, LogitsAndGenerationMatchTransformers) {
  const std::string folder = golden_folders + GetParam();
  const io::SafeTensors expected = io::load_safetensors(folder + "/expected.safetensors");
  const nn::Pretrained model = nn::from_pretrained(folder, Device::cuda());
  const Array logits = array_of(expected.tensors.at("logits"));
  const Computed c = compute(model, array_of(expected.tensors.at("tokens")));
  EXPECT_LE(difference(c.logits, logits), 1e-5 * std::max(1.0, largest(logits)));
  EXPECT_LE(difference(c.loss, array_of(expected.tensors.at("loss"))), 1e-5);

  const auto text = array_of(expected.tensors.at("greedy")).values<std::int32_t>();
  std::vector<std::int32_t> tokens(text.begin(), text.end() - 64);
  nn::Generator generator(model);
  generator.extend(tokens, 64, {.temperature = 0}, 1);
  EXPECT_EQ(tokens, text);
}

INSTANTIATE_TEST_SUITE_P(All, CudaPretrained, ::testing::ValuesIn(golden_models()),
                         [](const auto& model) { return model.param; });

}  // namespace
