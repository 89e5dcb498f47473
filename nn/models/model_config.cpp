#include <tilegrad/nn/models/model_config.h>

#include <cmath>

#include <tilegrad/nn/layers/attention.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>

namespace tg::nn {

Architecture::Architecture() : Architecture(Gpt{}) {}

const std::vector<Architecture>& architectures() {
  static const auto& all = *new std::vector<Architecture>{
      Gpt{},
      Llama{},
      DeepSeek{},
  };
  return all;
}

Architecture architecture_named(std::string_view name) {
  std::string known;
  for (const Architecture& a : architectures()) {
    if (a.name() == name) return a;
    known += (known.empty() ? "" : ", ") + a.name();
  }
  throw Error("[model] got '" + std::string(name) + "', expected one of " + known);
}

void check_size(std::int64_t n, const char* what) {
  check_options<ShapeError>("model", {{what, n, Range::size(1)}});
}

void check_divisible(const ModelConfig& c) {
  check_size(c.heads, "number of heads");
  if (c.width % c.heads != 0)
    throw ShapeError("[model] width " + std::to_string(c.width) + " is not divisible by " +
                     std::to_string(c.heads) + " heads");
}

void ModelConfig::check() const {
  check_size(vocabulary, "vocabulary");
  check_size(context, "context");
  check_size(layers, "number of layers");
  check_size(heads, "number of heads");
  check_size(width, "width");
  architecture.check(*this);
  check_options("model", {{"dropout", dropout, Range::from_below(0, 1)}, {"std", std, Range::at_least(0)}});
}

std::string ModelConfig::text() const {
  const auto number = [](std::int64_t n, const char* what) {
    return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
  };
  return architecture.title() + ": " + number(layers, "layer") + ", " + number(heads, "head") +
         architecture.text(*this) + ", width " + std::to_string(width) + ", context " +
         std::to_string(context);
}

std::int64_t ModelConfig::parameters() const {
  Params counted = Params::counting();
  architecture.make(counted, *this);
  return counted.count();
}

void ModelConfig::each_parameter(const Params::Each& each) const {
  Params described = Params::counting(f32, each);
  architecture.make(described, *this);
}

std::vector<Setting> ModelConfig::settings() {
  std::vector<Setting> all = settings_of(*this);
  for (Setting& s : architecture.settings()) all.push_back(std::move(s));
  return all;
}

Init ModelConfig::linear_init() const {
  return initializer == Initializer::pytorch ? Init::pytorch() : Init::normal(std);
}

// Each block adds the results of two layers to the residual stream. If each of these 2·layers results has the
// variance 1/(2·layers), their sum has the variance 1.
Init ModelConfig::residual_init() const {
  if (initializer == Initializer::pytorch) return Init::pytorch();
  return Init::normal(std / std::sqrt(2.0 * static_cast<double>(layers)));
}

Init ModelConfig::embedding_init() const {
  return Init::normal(initializer == Initializer::pytorch ? 1 : std);
}

Layer ModelConfig::head(const Path& at, const Embedding& tokens) const {
  if (tied_head) return tokens.head();
  return Linear(at, width, vocabulary, {.bias = false, .init = linear_init(), .wide = true});
}

}  // namespace tg::nn
