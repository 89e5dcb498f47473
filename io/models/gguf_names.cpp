#include "io/models/tensor_names.h"

#include <algorithm>
#include <cstring>

#include <tilegrad/core/base/error.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/llama.h>

namespace tg::io {

namespace {

struct Pair {
  const char *theirs, *ggufs;
};

constexpr Pair architectures[] = {
    {"gpt2", "gpt2"},
    {"llama", "llama"},
    {"mistral", "llama"},
    {"qwen2", "qwen2"},
    {"qwen3", "qwen3"},
    {"smollm3", "smollm3"},
    {"olmo2", "olmo2"},
    {"phi3", "phi3"},
    {"gemma2", "gemma2"},
    {"gemma3_text", "gemma3"},
    {"deepseek_v2", "deepseek2"},
    {"deepseek_v3", "deepseek2"},
};

// Names of tensors without ".weight" and ".bias". Names of layers are given without "model.layers.I." or
// "transformer.h.I.".
constexpr Pair outer_names[] = {
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
    {"transformer.wte", "token_embd"},
    {"transformer.ln_f", "output_norm"},
    {"transformer.wpe", "position_embd"},
};
constexpr Pair layer_names[] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"self_attn.q_a_proj", "attn_q_a"},
    {"self_attn.q_a_layernorm", "attn_q_a_norm"},
    {"self_attn.q_b_proj", "attn_q_b"},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    {"self_attn.kv_b_proj", "attn_kv_b"},
    {"post_attention_layernorm", "ffn_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"ln_1", "attn_norm"},
    {"attn.c_attn", "attn_qkv"},
    {"attn.c_proj", "attn_output"},
    {"ln_2", "ffn_norm"},
    {"mlp.c_fc", "ffn_up"},
    {"mlp.c_proj", "ffn_down"},
};

const char* found(std::span<const Pair> names, std::string_view theirs) {
  const auto pair = std::ranges::find_if(names, [&](const Pair& p) { return theirs == p.theirs; });
  return pair == names.end() ? nullptr : pair->ggufs;
}

std::string gguf_name(const std::string& name, bool has_norms_behind) {
  const std::size_t dot = name.rfind('.');
  const std::string ending = name.substr(dot);
  std::string_view stem = std::string_view(name).substr(0, dot);
  if (const char* outer = found(outer_names, stem)) return outer + ending;
  for (const std::string_view before : {"model.layers.", "transformer.h."}) {
    if (!stem.starts_with(before)) continue;
    stem.remove_prefix(before.size());
    const std::size_t end = stem.find('.');
    const std::string_view layer = stem.substr(0, end), inner = stem.substr(end + 1);
    const char* theirs = found(layer_names, inner);
    if (has_norms_behind && inner == "post_attention_layernorm") theirs = "post_attention_norm";
    if (theirs != nullptr) return "blk." + std::string(layer) + "." + theirs + ending;
  }
  throw Error("[gguf] there is no tensor for the parameter " + name);
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> endings) {
  return std::ranges::any_of(endings, [&](const char* e) { return name.ends_with(e); });
}

// Calls move(row of the parameter, row of the tensor) for all rows.
void each_row(const GgufRowOrder& place, std::int64_t rows, auto&& move) {
  if (place.change != GgufRowOrder::Change::pairs) {
    for (std::int64_t r = 0; r < rows; ++r) move(r, r);
    return;
  }
  const std::int64_t d = rows / place.heads;
  for (std::int64_t head = 0; head < place.heads; ++head)
    for (std::int64_t r = 0; r < d; ++r) move(head * d + r, head * d + 2 * (r % (d / 2)) + r / (d / 2));
}

// Calls move(index in kv_b_proj, index in the tensor, number of consecutive elements in both).
void each_part(const GgufRowOrder& place, auto&& move) {
  const bool is_keys = place.change == GgufRowOrder::Change::keys;
  const std::int64_t both = place.keys + place.values, latent = place.shape[is_keys ? 1 : 2];
  for (std::int64_t h = 0; h < place.heads; ++h) {
    if (!is_keys) {
      move((h * both + place.keys) * latent, h * place.values * latent, place.values * latent);
      continue;
    }
    for (std::int64_t r = 0; r < place.keys; ++r)
      for (std::int64_t c = 0; c < latent; ++c)
        move((h * both + r) * latent + c, (h * latent + c) * place.keys + r, 1);
  }
}

bool is_latent(const GgufRowOrder& place) {
  return place.change == GgufRowOrder::Change::keys || place.change == GgufRowOrder::Change::values;
}

// Calls copy(offset in the parameter, offset in the tensor's rows, number of bytes) for all elements.
void each_copy(const GgufRowOrder& place, std::int64_t rows, std::size_t bytes, std::size_t size,
               auto&& copy) {
  if (is_latent(place)) {
    each_part(place, [&](std::int64_t parameter, std::int64_t there, std::int64_t n) {
      copy(static_cast<std::size_t>(parameter) * size, static_cast<std::size_t>(there) * size,
           static_cast<std::size_t>(n) * size);
    });
    return;
  }
  const std::size_t row = bytes / static_cast<std::size_t>(rows);
  each_row(place, rows, [&](std::int64_t parameter, std::int64_t there) {
    copy(static_cast<std::size_t>(parameter) * row, static_cast<std::size_t>(there) * row, row);
  });
}

}  // namespace

std::string gguf_architecture(const std::string& family) {
  const char* name = found(architectures, family);
  return name == nullptr ? "" : name;
}

std::vector<GgufRowOrder> gguf_rows(const std::string& family, const nn::ModelConfig& model,
                                    const std::string& parameter, const Shape& shape) {
  const HfTensor theirs = hf_tensor(family, model, parameter, shape);
  const bool has_norms_behind = family == "olmo2" || family == "gemma2" || family == "gemma3_text";
  GgufRowOrder place{.tensor = gguf_name(theirs.name, has_norms_behind),
                     .shape = theirs.is_transposed ? shape : theirs.shape,
                     .first_row = theirs.first_row};
  const auto* llama = model.architecture.as<nn::Llama>();
  if (family == "llama" || family == "mistral" || family == "smollm3") {
    const bool is_query = is_one_of(parameter, {".q_proj.weight", ".q_proj.bias"});
    if (is_query || is_one_of(parameter, {".k_proj.weight", ".k_proj.bias"})) {
      place.change = GgufRowOrder::Change::pairs;
      place.heads = is_query || llama == nullptr || llama->key_heads == 0 ? model.heads : llama->key_heads;
    }
  }
  if (llama != nullptr && llama->plus_one && parameter.ends_with("norm.weight"))
    place.change = GgufRowOrder::Change::plus_one;
  if (!parameter.ends_with(".kv_b_proj.weight")) return {place};
  const auto& d = *model.architecture.as<nn::DeepSeek>();
  const std::string stem =
      place.tensor.substr(0, place.tensor.size() - std::string_view("kv_b.weight").size());
  place.heads = model.heads;
  place.keys = d.head_width == 0 ? model.width / model.heads : d.head_width;
  place.values = d.value_width == 0 ? place.keys : d.value_width;
  GgufRowOrder keys = place, values = place;
  keys.tensor = stem + "k_b.weight", keys.change = GgufRowOrder::Change::keys;
  keys.shape = {model.heads, d.latent, place.keys};
  values.tensor = stem + "v_b.weight", values.change = GgufRowOrder::Change::values;
  values.shape = {model.heads, place.values, d.latent};
  return {keys, values};
}

std::vector<std::byte> to_place(const GgufRowOrder& place, const TensorView& parameter) {
  const std::size_t size = size_of(parameter.dtype);
  std::vector<std::byte> rows(is_latent(place) ? static_cast<std::size_t>(numel(place.shape)) * size
                                               : parameter.bytes.size());
  each_copy(place, parameter.shape[0], parameter.bytes.size(), size,
            [&](std::size_t from, std::size_t to, std::size_t n) {
              std::memcpy(rows.data() + to, parameter.bytes.data() + from, n);
            });
  return rows;
}

void from_place(const GgufRowOrder& place, const TensorView& rows, std::span<std::byte> parameter,
                std::int64_t parameter_rows) {
  each_copy(place, parameter_rows, parameter.size(), size_of(rows.dtype),
            [&](std::size_t to, std::size_t from, std::size_t n) {
              std::memcpy(parameter.data() + to, rows.bytes.data() + from, n);
            });
}

}  // namespace tg::io
