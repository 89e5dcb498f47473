#include "io/models/tensor_names.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <tilegrad/nn/models/llama.h>

namespace tg::io {

namespace {

bool ends_with_any(const std::string& name, std::initializer_list<const char*> endings) {
  return std::ranges::any_of(endings, [&](const char* e) { return name.ends_with(e); });
}

// Returns the layer number of a tensor, or −1.
std::int64_t layer_of_tensor(const std::string& name) {
  const std::string before = "model.layers.";
  std::int64_t layer = -1;
  if (name.starts_with(before))
    std::from_chars(name.data() + before.size(), name.data() + name.size(), layer);
  return layer;
}

struct Part {
  const char *ours, *theirs;
  std::int64_t first, all;  // rows
};

// Returns the number of rows of q_proj and of k_proj.
std::pair<std::int64_t, std::int64_t> projection_rows(const nn::ModelConfig& model) {
  const nn::Llama l = model.architecture.as<nn::Llama>() ? *model.architecture.as<nn::Llama>() : nn::Llama{};
  const std::int64_t d = l.head_width == 0 ? model.width / model.heads : l.head_width;
  return {d * model.heads, d * (l.key_heads == 0 ? model.heads : l.key_heads)};
}

// Phi 3 stores the weights of queries, keys and values in one tensor, and the weights of the MLP's gates and
// values in a second tensor.
void join_rows(const nn::ModelConfig& model, HfTensor& t) {
  const std::int64_t rows = t.shape[0];
  const auto [q, k] = projection_rows(model);
  const Part parts[] = {{".self_attn.q_proj.weight", ".self_attn.qkv_proj.weight", 0, q + 2 * k},
                        {".self_attn.k_proj.weight", ".self_attn.qkv_proj.weight", q, q + 2 * k},
                        {".self_attn.v_proj.weight", ".self_attn.qkv_proj.weight", q + k, q + 2 * k},
                        {".mlp.gate_proj.weight", ".mlp.gate_up_proj.weight", 0, 2 * rows},
                        {".mlp.up_proj.weight", ".mlp.gate_up_proj.weight", rows, 2 * rows}};
  for (const Part& p : parts) {
    if (!t.name.ends_with(p.ours)) continue;
    t.name = t.name.substr(0, t.name.size() - std::string_view(p.ours).size()) + p.theirs;
    t.first_row = p.first;
    t.shape[0] = p.all;
    return;
  }
}

}  // namespace

HfTensor hf_tensor(const std::string& family, const nn::ModelConfig& model, const std::string& parameter,
                   const Shape& shape) {
  HfTensor t{.name = parameter, .shape = shape};
  if (family == "phi3") join_rows(model, t);
  // GPT-2 uses "Conv1D" for the linear layers of blocks. Its weights are [inputs, outputs].
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
