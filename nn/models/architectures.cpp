#include <tilegrad/nn/models/architectures.h>

namespace tg::nn {

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> all{
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
  throw Error("[model] '" + std::string(name) + "' is none of " + known);
}

}  // namespace tg::nn
