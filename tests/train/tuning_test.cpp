// Compares 50 fine-tuning steps of models from Hugging Face folders with transformers and torch's AdamW on
// the same batches. tests/interop/make_tuning_golden.py writes the reference.
#include <gtest/gtest.h>

#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/train/training.h>
#include "tests/support/golden_models.h"

namespace {

using namespace tg;
using namespace tg::testing;

class Tuning : public ::testing::TestWithParam<std::string> {
 protected:
  const io::SafeTensors golden =
      io::load_safetensors(golden_folders + "../tuning/" + GetParam() + ".safetensors");
  Array of(const std::string& name) const { return array_of(golden.tensors.at(name)); }

  // Returns row `step` of tokens or targets [steps, batch, length].
  std::vector<std::int32_t> batch(const Array& all, std::int64_t step) const {
    const std::int64_t size = all.numel() / all.shape()[0];
    const std::int32_t* first = all.data<std::int32_t>() + step * size;
    return {first, first + size};
  }
};

TEST_P(Tuning, LossesMatchTransformersWithAdamW) {
  const Array tokens = of("tokens"), targets = of("targets"), loss = of("loss"), norm = of("grad_norm"),
              rate = of("rate");
  const std::int64_t steps = tokens.shape()[0];
  ASSERT_EQ(steps, 50);
  const nn::Pretrained base =
      nn::from_pretrained(golden_folders + GetParam(), Device::cpu(), {.context = tokens.shape()[2]});
  const optim::AdamW optimizer(base.model.parameters());
  train::TrainingProgram training(base.model, optimizer, {.batch = tokens.shape()[1]});
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto result = training.run(batch(tokens, step), batch(targets, step), rate.at(step));
    EXPECT_NEAR(result.loss, loss.at(step), 1e-4) << "step " << step;
    EXPECT_NEAR(result.grad_norm, norm.at(step), 1e-3 * norm.at(step)) << "step " << step;
  }
  EXPECT_LT(loss.at(steps - 1), loss.at(0) - 1);  // the model learns
}

INSTANTIATE_TEST_SUITE_P(Some, Tuning, ::testing::Values("llama", "gpt2", "qwen3", "gemma3"),
                         [](const auto& model) { return model.param; });

}  // namespace
