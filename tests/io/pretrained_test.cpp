// Compares models of Hugging Face folders with the results of transformers from the same files.
// tests/interop/make_golden.py writes the folders and the expected numbers.
#include <gtest/gtest.h>

#include <set>

#include <tilegrad/io/files/file.h>
#include "io/models/tensor_names.h"
#include "tests/support/files.h"
#include "tests/support/golden_models.h"

namespace {

using namespace tg;
using namespace tg::testing;

class Pretrained : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string folder = golden_folders + GetParam();
  const io::SafeTensors expected = io::load_safetensors(folder + "/expected.safetensors");
  Array of(const std::string& name) const { return array_of(expected.tensors.at(name)); }
};

TEST_P(Pretrained, LogitsLossAndGradientsMatchTransformers) {
  const nn::Pretrained model = nn::from_pretrained(folder);
  const Computed c = compute(model, of("tokens"));
  const Array logits = of("logits");
  ASSERT_EQ(c.logits.shape(), logits.shape());
  EXPECT_LE(difference(c.logits, logits), 1e-5 * std::max(1.0, largest(logits)));
  EXPECT_LE(difference(c.loss, of("loss")), 1e-5);
  std::set<std::string> compared;
  for (std::size_t i = 0; i < c.gradients.size(); ++i) {
    const Parameter& p = model.model.parameters()[i];
    const io::HfTensor theirs = io::hf_tensor(model.info.family, model.info.config, p.name(), p.shape());
    const Array z = of("grad." + theirs.name);
    compared.insert("grad." + theirs.name);
    ASSERT_EQ(z.shape(), theirs.shape) << p.name();
    const std::int64_t first = theirs.first_row * p.shape().back();
    EXPECT_LE(difference(c.gradients[i], z, theirs.is_transposed, first), 1e-4 * largest(z)) << p.name();
  }
  for (const auto& [name, tensor] : expected.tensors)
    EXPECT_EQ(name.starts_with("grad."), compared.contains(name)) << name;
}

TEST_P(Pretrained, GenerationMatchesTransformers) {
  const nn::Pretrained model = nn::from_pretrained(folder);
  const std::vector<std::int32_t> text = of("greedy").values<std::int32_t>();
  constexpr std::int64_t count = 64;
  for (const bool cache : {true, false}) {
    std::vector<std::int32_t> tokens(text.begin(), text.end() - count);
    nn::Generator generator(model, {.cache = cache});
    generator.extend(tokens, count, {.temperature = 0}, 1);
    EXPECT_EQ(tokens, text) << (cache ? "with" : "without") << " a cache";
  }
}

INSTANTIATE_TEST_SUITE_P(All, Pretrained, ::testing::ValuesIn(golden_models()),
                         [](const auto& model) { return model.param; });

// If there is no cache, the length of the sequence selects LongRoPE's factors, as in transformers.
TEST(PretrainedLongRope, LengthSelectsTheFactorsWithoutACache) {
  const TemporaryDirectory directory;
  const std::string source = golden_folders + "phi3_short";
  std::filesystem::copy_file(source + "/model.safetensors", directory / "model.safetensors");
  std::string config = io::read_file(source + "/config.json", "test");
  const std::string size = "\"max_position_embeddings\": 80,";
  const std::size_t at = config.find(" " + size) + 1;
  directory.file("config.json", config.replace(at, size.size(), "\"max_position_embeddings\": 96,"));
  const io::SafeTensors expected = io::load_safetensors(source + "/expected.safetensors");
  const Array tokens = array_of(expected.tensors.at("tokens")),
              logits = array_of(expected.tensors.at("logits"));
  const auto of = [&](std::int64_t context) {
    const nn::Pretrained model =
        nn::from_pretrained(directory.path.string(), Device::cpu(), {.context = context});
    EXPECT_EQ(model.model.context(), context == 0 ? 96 : context);
    return compute(model, tokens).logits;
  };
  for (const std::int64_t context : {80, 20, 81, 0})
    EXPECT_LE(difference(of(context), logits), 1e-5 * largest(logits)) << context;
  // Sequences of up to 80 tokens use the short factors. If the limit is changed to 5, the same sequences use
  // the long factors.
  const std::string first = "\"original_max_position_embeddings\": 80";
  for (std::size_t i = 0; (i = config.find(first, i)) != std::string::npos; ++i)
    config.replace(i, first.size(), "\"original_max_position_embeddings\": 5");
  directory.file("config.json", config);
  EXPECT_GT(difference(of(0), logits), 0.01 * largest(logits));
}

// A cache stores rotated keys, so the model's context must select the factors.
TEST(PretrainedLongRope, ContextSelectsTheFactorsWithACache) {
  const std::string folder = golden_folders + "phi3_long";  // short factors up to 5 tokens
  const auto text_of = [&](std::int64_t context, bool cache) {
    const nn::Pretrained model = nn::from_pretrained(folder, Device::cpu(), {.context = context});
    nn::Generator generator(model, {.cache = cache});
    std::vector<std::int32_t> tokens = {3, 1};
    generator.extend(tokens, 3, {.temperature = 0}, 1);
    return tokens;
  };
  EXPECT_EQ(text_of(5, true), text_of(5, false));
  EXPECT_EQ(text_of(5, true), text_of(0, false));  // the length selects the short factors
}

}  // namespace
