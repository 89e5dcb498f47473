// Loads golden folders of tests/io/pretrained and the results of their models, for tests on every backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/tilegrad.h>

namespace tg::testing {

inline const std::string golden_folders = GOLDEN_FOLDERS;

inline std::vector<std::string> golden_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_folders))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

inline Array array_of(const io::TensorView& t) {
  Array a(t.shape, t.dtype);
  std::memcpy(a.raw(), t.bytes.data(), t.bytes.size());
  return a;
}

inline double largest(const Array& a) {
  double most = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) most = std::max(most, std::abs(a.at(i)));
  return most;
}

// Returns the largest difference, or infinity if there is a NaN. With is_transposed, b is [n, m] and a is [m,
// n]. Otherwise, a is compared with the elements of b that start at index `first`.
inline double difference(const Array& a, const Array& b, bool is_transposed = false, std::int64_t first = 0) {
  double most = 0;
  const std::int64_t columns = is_transposed ? a.shape().back() : 1;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const std::int64_t j = is_transposed ? i % columns * (a.numel() / columns) + i / columns : first + i;
    const double d = std::abs(a.at(i) - b.at(j));
    most = d <= most ? most : std::isnan(d) ? INFINITY : d;
  }
  return most;
}

struct Computed {
  Array logits, loss;
  std::vector<Array> gradients;  // dtype of the model's parameters
};

inline Computed compute(const nn::Pretrained& model, const Array& tokens) {
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
  Program program = compile(g, fetched, {.device = of.device()});
  program.run({{x, tokens}});
  Computed c{program.fetch(logits), program.fetch(loss), {}};
  for (const Tensor& z : all) c.gradients.push_back(program.fetch(z));
  return c;
}

}  // namespace tg::testing
