// Compares models of every architecture on a GPU with the CPU. Covers training steps and generation with a
// key-value cache. Skipped if there is no GPU.
#include <gtest/gtest.h>

#include <cmath>

#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/train/training.h>
#include "backends/cuda/cuda.h"

namespace {

using namespace tg;

class CudaModels : public ::testing::TestWithParam<nn::ModelConfig> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

nn::ModelConfig config(nn::Architecture architecture) {
  return {.architecture = std::move(architecture),
          .vocabulary = 13,
          .context = 16,
          .layers = 2,
          .heads = 4,
          .width = 32,
          .tied_head = false,
          .std = 0.2};
}

INSTANTIATE_TEST_SUITE_P(Architectures, CudaModels,
                         ::testing::Values(config(nn::Gpt{}), config(nn::Llama{.key_heads = 2}),
                                           config(nn::DeepSeek{
                                               .latent = 12, .query_latent = 10, .rope_width = 4})),
                         [](const auto& of) { return of.param.architecture.name(); });

TEST_P(CudaModels, LossesMatchTheCpu) {
  const auto losses = [](Device device) {
    nn::Params params(1, f32, device);
    const nn::Model model(params, GetParam());
    const optim::AdamW optimizer(params.all());
    train::TrainingProgram training(model, optimizer, {.batch = 2});
    std::vector<std::int32_t> x, y;
    for (std::int32_t i = 0; i < 32; ++i) x.push_back(i * i % 13), y.push_back((i + 1) * (i + 1) % 13);
    std::vector<float> all;
    for (int step = 0; step < 4; ++step) all.push_back(training.run(x, y, 1e-3).loss);
    return all;
  };
  const auto here = losses(Device::cpu()), there = losses(Device::cuda());
  for (std::size_t i = 0; i < here.size(); ++i) EXPECT_NEAR(there[i], here[i], 1e-4) << "step " << i;
}

TEST_P(CudaModels, GenerationMatchesTheCpuWithACacheAndPastTheContext) {
  const auto text = [](Device device) {
    nn::Params params(1, f32, device);
    const nn::Model model(params, GetParam());
    nn::Generator generator(model);
    std::vector<std::int32_t> tokens = {3, 1, 4, 1, 5};
    generator.extend(tokens, 16, {.temperature = 0}, 1);
    return tokens;
  };
  EXPECT_EQ(text(Device::cuda()), text(Device::cpu()));
}

TEST_P(CudaModels, LogitsMatchTheCpuOn16BitWeights) {
  for (const DType dtype : {bf16, f16}) {
    const auto logits = [&](Device device) {
      nn::Params params(1, dtype, device);
      const nn::Model model(params, GetParam());
      nn::Generator generator(model);
      const std::vector<std::int32_t> text{3, 1, 4, 1, 5, 9};
      std::vector<float> all;
      for (std::size_t n = 5; n <= text.size(); ++n) {  // the prompt and one more token
        const auto next = generator.next(std::span(text).first(n));
        all.insert(all.end(), next.begin(), next.end());
      }
      return all;
    };
    const auto here = logits(Device::cpu()), there = logits(Device::cuda());
    double error = 0, size = 0;
    for (std::size_t i = 0; i < here.size(); ++i) {
      error += (there[i] - here[i]) * (there[i] - here[i]);
      size += here[i] * here[i];
    }
    // On each device, each of the 2 layers rounds about 16 tensors. The sum of n errors is about √n times one
    // error.
    EXPECT_LT(std::sqrt(error / size), std::sqrt(2 * 16) * (dtype == bf16 ? 0x1p-8 : 0x1p-11))
        << name_of(dtype);
  }
}

}  // namespace
