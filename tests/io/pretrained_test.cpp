// Models from Hugging Face folders, compared with what transformers computes from the same files. The folders
// and the expected numbers are written by tests/interop/make_golden.py.
#include <tilegrad/io/interop/pretrained.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include <tilegrad/tilegrad.h>
#include "io/interop/hf_names.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;

const std::string golden = GOLDEN_FOLDERS;

std::vector<std::string> models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

Array array_of(const io::TensorView& t) {
  Array a(t.shape, t.dtype);
  std::memcpy(a.raw(), t.bytes.data(), t.bytes.size());
  return a;
}

double largest(const Array& a) {
  double most = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) most = std::max(most, std::abs(a.at(i)));
  return most;
}

// The largest difference; infinite for NaN. With is_transposed, b is [n, m] and a [m, n].
double difference(const Array& a, const Array& b, bool is_transposed = false) {
  double most = 0;
  const std::int64_t columns = a.shape().back();
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const std::int64_t j = is_transposed ? i % columns * (a.numel() / columns) + i / columns : i;
    const double d = std::abs(a.at(i) - b.at(j));
    most = d <= most ? most : std::isnan(d) ? INFINITY : d;
  }
  return most;
}

struct Computed {
  Array logits, loss;
  std::vector<Array> gradients;  // of the model's parameters
};

Computed compute(const nn::Pretrained& model, const Array& tokens) {
  Graph g;
  const std::int64_t length = tokens.shape()[1];
  const Tensor x = g.input("tokens", tokens.shape(), i32);
  const nn::LanguageModel of = model;
  const Tensor logits = of.logits(x);
  const Tensor loss = cross_entropy(slice(logits, 1, 0, length - 1), slice(x, 1, 1, length));
  std::vector<Tensor> weights;
  for (const Parameter& p : model.model.parameters()) weights.push_back(g.param(p));
  const std::vector<Tensor> all = gradients(loss, weights);
  std::vector<Tensor> fetched{logits, loss};
  fetched.insert(fetched.end(), all.begin(), all.end());
  Program program = compile(g, fetched);
  program.run({{x, tokens}});
  Computed c{program.fetch(logits), program.fetch(loss), {}};
  for (const Tensor& z : all) c.gradients.push_back(program.fetch(z));
  return c;
}

class Pretrained : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string folder = golden + GetParam();
  const io::SafeTensors expected = io::load_safetensors(folder + "/expected.safetensors");
  Array of(const std::string& name) const { return array_of(expected.tensors.at(name)); }
};

TEST_P(Pretrained, HasTheLogitsTheLossAndTheGradientsOfTransformers) {
  const nn::Pretrained model = nn::from_pretrained(folder);
  const Computed c = compute(model, of("tokens"));
  const Array logits = of("logits");
  ASSERT_EQ(c.logits.shape(), logits.shape());
  EXPECT_LE(difference(c.logits, logits), 1e-5 * std::max(1.0, largest(logits)));
  EXPECT_LE(difference(c.loss, of("loss")), 1e-5);
  std::set<std::string> compared;
  for (std::size_t i = 0; i < c.gradients.size(); ++i) {
    const Parameter& p = model.model.parameters()[i];
    const io::HfTensor theirs = io::hf_tensor(model.info.family, p.name(), p.shape());
    const Array z = of("grad." + theirs.name);
    compared.insert("grad." + theirs.name);
    ASSERT_EQ(z.shape(), theirs.shape) << p.name();
    EXPECT_LE(difference(c.gradients[i], z, theirs.is_transposed), 1e-4 * largest(z)) << p.name();
  }
  for (const auto& [name, tensor] : expected.tensors)
    EXPECT_EQ(name.starts_with("grad."), compared.contains(name)) << name;
}

TEST_P(Pretrained, ContinuesATextAsTransformersDoes) {
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

INSTANTIATE_TEST_SUITE_P(All, Pretrained, ::testing::ValuesIn(models()),
                         [](const auto& model) { return model.param; });

}  // namespace
