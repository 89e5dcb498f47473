#include "io/interop/hf_names.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace tg::io {

namespace {

bool ends_with_any(const std::string& name, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](const char* e) { return name.ends_with(e); });
}

// The number of the layer that the tensor is of, −1 if of none.
std::int64_t layer_of_tensor(const std::string& name) {
  const std::string before = "model.layers.";
  std::int64_t layer = -1;
  if (name.starts_with(before))
    std::from_chars(name.data() + before.size(), name.data() + name.size(), layer);
  return layer;
}

}  // namespace

HfTensor hf_tensor(const std::string& family, const std::string& parameter, const Shape& shape) {
  HfTensor t{.name = parameter, .shape = shape};
  // GPT-2's linear layers in blocks are its "Conv1D", whose weights are [inputs, outputs].
  if (family == "gpt2" && ends_with_any(parameter, {".c_attn.weight", ".c_proj.weight", ".c_fc.weight"})) {
    t.is_transposed = true;
    std::swap(t.shape[0], t.shape[1]);
  }
  return t;
}

bool is_dropped_by_hf(const std::string& family, const std::string& name, std::int64_t layers) {
  if (family == "gpt2") return ends_with_any(name, {".attn.bias", ".attn.masked_bias"});
  if (name.ends_with("rotary_emb.inv_freq")) return true;
  return family == "deepseek_v3" && layer_of_tensor(name) >= layers;
}

}  // namespace tg::io
