#include <tilegrad/nn/models/architectures.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>

namespace tg::nn {

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

}  // namespace tg::nn
