#include "io/interop/gguf_names.h"

#include <algorithm>
#include <iterator>

#include <tilegrad/nn/models/llama.h>

namespace tg::io {

namespace {

struct Pair {
  const char *theirs, *gguf;
};

constexpr Pair architectures[] = {{"gpt2", "gpt2"},         {"llama", "llama"}, {"mistral", "llama"},
                                  {"qwen2", "qwen2"},       {"qwen3", "qwen3"}, {"smollm3", "smollm3"},
                                  {"olmo2", "olmo2"},       {"phi3", "phi3"},   {"gemma2", "gemma2"},
                                  {"gemma3_text", "gemma3"}};

constexpr Pair outside_layers[] = {{"model.embed_tokens", "token_embd"},
                                   {"model.norm", "output_norm"},
                                   {"lm_head", "output"},
                                   {"transformer.wte", "token_embd"},
                                   {"transformer.wpe", "position_embd"},
                                   {"transformer.ln_f", "output_norm"}};
constexpr Pair in_layers[] = {{"input_layernorm", "attn_norm"},
                              {"self_attn.q_proj", "attn_q"},
                              {"self_attn.k_proj", "attn_k"},
                              {"self_attn.v_proj", "attn_v"},
                              {"self_attn.qkv_proj", "attn_qkv"},
                              {"self_attn.o_proj", "attn_output"},
                              {"self_attn.q_norm", "attn_q_norm"},
                              {"self_attn.k_norm", "attn_k_norm"},
                              {"pre_feedforward_layernorm", "ffn_norm"},
                              {"post_feedforward_layernorm", "post_ffw_norm"},
                              {"mlp.gate_proj", "ffn_gate"},
                              {"mlp.up_proj", "ffn_up"},
                              {"mlp.gate_up_proj", "ffn_up"},
                              {"mlp.down_proj", "ffn_down"},
                              {"ln_1", "attn_norm"},
                              {"attn.c_attn", "attn_qkv"},
                              {"attn.c_proj", "attn_output"},
                              {"ln_2", "ffn_norm"},
                              {"mlp.c_fc", "ffn_up"},
                              {"mlp.c_proj", "ffn_down"}};

template <std::size_t n>
std::string found(const Pair (&pairs)[n], const std::string& theirs) {
  const auto* p =
      std::find_if(std::begin(pairs), std::end(pairs), [&](const Pair& x) { return theirs == x.theirs; });
  return p == std::end(pairs) ? "" : p->gguf;
}

// The norm before the MLP, or behind the attention where norms are behind the branches.
std::string second_norm(const HfConfig& config) {
  const auto* l = config.model.architecture.as<nn::Llama>();
  return l != nullptr && l->norms != "before" ? "post_attention_norm" : "ffn_norm";
}

}  // namespace

std::string gguf_architecture(const std::string& family) {
  return found(architectures, family);
}

GgufTensorName gguf_tensor_name(const HfConfig& config, const std::string& hf_name) {
  const std::size_t dot = hf_name.rfind('.');
  if (dot == std::string::npos) return {};
  std::string module = hf_name.substr(0, dot), name;
  const std::string kind = hf_name.substr(dot);
  GgufTensorName t;
  for (const std::string layers : {"model.layers.", "transformer.h."}) {
    if (!module.starts_with(layers)) continue;
    const std::size_t end = module.find('.', layers.size());
    if (end == std::string::npos) return {};
    const std::string number = module.substr(layers.size(), end - layers.size());
    module = module.substr(end + 1);
    name = module == "post_attention_layernorm" ? second_norm(config) : found(in_layers, module);
    if (!name.empty()) name = "blk." + number + "." + name;
  }
  if (name.empty()) name = found(outside_layers, module);
  if (name.empty()) return {};
  t.name = name + kind;
  if (const auto* l = config.model.architecture.as<nn::Llama>()) {
    const std::string architecture = gguf_architecture(config.family);
    const bool turns = architecture == "llama" || architecture == "smollm3";
    if (turns && module == "self_attn.q_proj") t.heads = config.model.heads;
    if (turns && module == "self_attn.k_proj")
      t.heads = l->key_heads == 0 ? config.model.heads : l->key_heads;
    t.is_plus_one = l->plus_one && name.ends_with("_norm");
  }
  return t;
}

std::int64_t interleaved_row(std::int64_t row, std::int64_t width) {
  const std::int64_t head = row / width, i = row % width, half = width / 2;
  return head * width + i % half * 2 + i / half;
}

}  // namespace tg::io
