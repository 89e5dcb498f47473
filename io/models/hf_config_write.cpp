// Writes config.json of a model, for the families that hf_config.cpp reads.
#include <algorithm>
#include <cmath>
#include <map>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include "io/files/json_object.h"
#include "io/models/hf_config.h"

namespace tg::io {

namespace {

using nn::ModelConfig;

const char* their_activation(const std::string& ours) {
  return ours == "gelu_tanh" ? "gelu_pytorch_tanh" : ours == "gelu" ? "gelu" : "silu";
}

void write_sizes(const ModelConfig& m, JsonMembers& to) {
  to.set("vocab_size", m.vocabulary), to.set("max_position_embeddings", m.context);
  to.set("hidden_size", m.width), to.set("num_hidden_layers", m.layers);
  to.set("num_attention_heads", m.heads);
}

// Writes the keys of transformers 5 and of transformers 4. If the keys of transformers 4 were missing, it
// would use a different theta.
void write_rope(const HfRope& rope, JsonMembers& to) {
  to.set_json("rope_parameters", hf_rope_json(rope));
  to.set("rope_theta", rope.theta);
  if (rope.share != 1) to.set("partial_rotary_factor", rope.share);
  if (!rope.scaling.is_none()) to.set_json("rope_scaling", hf_rope_scaling_json(rope));
}

// Writes the keys that all models related to Llama have.
void write_llama_of(const ModelConfig& m, const nn::Llama& l, JsonMembers& to) {
  write_sizes(m, to);
  to.set("intermediate_size", l.mlp_width), to.set("num_key_value_heads", l.key_heads);
  to.set("head_dim", l.head_width), to.set("rms_norm_eps", l.eps);
  to.set("attention_bias", l.attention_bias);
  to.set("hidden_act", their_activation(l.activation));
  HfRope rope{.theta = l.theta,
              .scaling = l.scaling,
              .share = l.rotary_width == 0 ? 1 : hf_share(l.rotary_width, l.head_width)};
  // This key has no effect, but the classes warn if it is missing.
  if (l.scaling.type == "longrope")
    rope.scaling.factor = static_cast<double>(m.context) / l.scaling.first_context;
  write_rope(rope, to);
}

// Returns the window of the layers that have one; 0 if none has.
std::int64_t any_window(const nn::Llama& l) {
  return l.windows.empty() ? 0 : *std::ranges::max_element(l.windows);
}

void write_layer_types(const ModelConfig& m, const nn::Llama& l, JsonMembers& to) {
  std::vector<std::string> types;
  for (std::size_t i = 0; i < static_cast<std::size_t>(m.layers); ++i) {
    const bool has_window = !l.windows.empty() && l.windows[i % l.windows.size()] > 0;
    types.push_back(has_window ? "sliding_attention" : "full_attention");
  }
  to.set("layer_types", types);
}

void write_optional_windows(const ModelConfig& m, const nn::Llama& l, JsonMembers& to) {
  const std::int64_t window = any_window(l);
  to.set("use_sliding_window", window > 0);
  to.set("sliding_window", window > 0 ? std::optional(window) : std::nullopt);
  write_layer_types(m, l, to);
}

void write_window_of_all(const nn::Llama& l, JsonMembers& to) {
  const std::int64_t window = any_window(l);
  to.set("sliding_window", window > 0 ? std::optional(window) : std::nullopt);
}

void write_llama(const ModelConfig& m, const nn::Llama& l, JsonMembers& to) {
  write_llama_of(m, l, to);
  to.set("mlp_bias", l.mlp_bias);
}

void write_qwen(const ModelConfig& m, const nn::Llama& l, JsonMembers& to) {
  write_llama_of(m, l, to);
  write_optional_windows(m, l, to);
  to.set("max_window_layers", m.layers);  // layer_types has precedence
}

void write_mistral(const ModelConfig& m, const nn::Llama& l, JsonMembers& to) {
  write_llama_of(m, l, to);
  write_window_of_all(l, to);
}

void write_phi3(const ModelConfig& m, const nn::Llama& l, JsonMembers& to) {
  write_mistral(m, l, to);
  to.set("original_max_position_embeddings",
         l.scaling.type == "longrope" ? static_cast<std::int64_t>(l.scaling.first_context) : m.context);
}

void write_smollm3(const ModelConfig& m, const nn::Llama& l, JsonMembers& to) {
  write_llama_of(m, l, to);
  to.set("mlp_bias", l.mlp_bias);
  std::vector<std::int64_t> rotated;
  for (std::size_t i = 0; i < static_cast<std::size_t>(m.layers); ++i)
    rotated.push_back(l.rotated.empty() ? 1 : l.rotated[i % l.rotated.size()]);
  to.set("no_rope_layers", rotated);
  write_optional_windows(m, l, to);
}

void write_gemma2(const ModelConfig& m, const nn::Llama& l, JsonMembers& to) {
  write_llama_of(m, l, to);
  to.set("hidden_activation", their_activation(l.activation));
  // The classes require an integer here.
  to.set("query_pre_attn_scalar",
         static_cast<std::int64_t>(std::llround(1 / (l.attention_scale * l.attention_scale))));
  const auto cap = [](double x) { return x == 0 ? std::nullopt : std::optional(x); };
  to.set("attn_logit_softcapping", cap(l.attention_softcap));
  to.set("final_logit_softcapping", cap(l.logit_softcap));
  to.set("sliding_window", any_window(l) > 0 ? any_window(l) : m.context);
  write_layer_types(m, l, to);
}

void write_gemma3(const ModelConfig& m, const nn::Llama& l, JsonMembers& to) {
  write_gemma2(m, l, to);
  const double local = l.window_theta == 0 ? l.theta : l.window_theta;
  const HfRope whole{.theta = l.theta, .scaling = l.scaling};
  write_rope(whole, to);
  to.set("rope_local_base_freq", local);
  to.set_json("rope_parameters", "{\"full_attention\": " + hf_rope_json(whole) +
                                     ", \"sliding_attention\": " + hf_rope_json({.theta = local}) + "}");
}

void write_gpt2(const ModelConfig& m, const nn::Gpt& g, JsonMembers& to) {
  to.set("vocab_size", m.vocabulary), to.set("n_embd", m.width);
  to.set("n_positions", m.context), to.set("n_ctx", m.context);  // other programs read the old key
  to.set("n_layer", m.layers), to.set("n_head", m.heads), to.set("n_inner", g.mlp_width);
  to.set("layer_norm_epsilon", g.eps);
  to.set("activation_function", g.activation == "gelu_tanh" ? "gelu_new" : their_activation(g.activation));
}

void write_deepseek(const ModelConfig& m, const nn::DeepSeek& d, JsonMembers& to) {
  write_sizes(m, to);
  to.set("intermediate_size", d.mlp_width), to.set("num_key_value_heads", m.heads);
  to.set("kv_lora_rank", d.latent);
  to.set("q_lora_rank", d.query_latent == 0 ? std::nullopt : std::optional(d.query_latent));
  to.set("qk_rope_head_dim", d.rope_width), to.set("qk_nope_head_dim", d.head_width);
  to.set("v_head_dim", d.value_width), to.set("rms_norm_eps", d.eps);
  to.set("attention_bias", d.attention_bias), to.set("hidden_act", "silu");
  const double usual = 1 / std::sqrt(static_cast<double>(d.head_width + d.rope_width));
  const double scale = d.attention_scale == 0 ? usual : d.attention_scale;
  write_rope({.theta = d.theta, .scaling = d.scaling, .score_scale = scale / usual}, to);
  // No layer has experts, but the classes require their sizes.
  to.set("first_k_dense_replace", m.layers);
  to.set("n_routed_experts", std::int64_t{4}), to.set("num_experts_per_tok", std::int64_t{2});
  to.set("n_group", std::int64_t{1}), to.set("topk_group", std::int64_t{1});
}

void write_deepseek_v3(const ModelConfig& m, const nn::DeepSeek& d, JsonMembers& to) {
  write_deepseek(m, d, to);
  to.set("rope_interleave", d.interleaved);
}

template <class Kind, auto write>
bool written(const ModelConfig& m, JsonMembers& to) {
  const Kind* kind = m.architecture.as<Kind>();
  if (kind != nullptr) write(m, *kind, to);
  return kind != nullptr;
}

// In order of preference.
struct FamilyText {
  const char* name;
  bool (*write)(const ModelConfig& model, JsonMembers& to);  // false for a different architecture
};
const FamilyText family_texts[] = {
    {"gpt2", written<nn::Gpt, write_gpt2>},
    {"llama", written<nn::Llama, write_llama>},
    {"qwen2", written<nn::Llama, write_qwen>},
    {"qwen3", written<nn::Llama, write_qwen>},
    {"mistral", written<nn::Llama, write_mistral>},
    {"smollm3", written<nn::Llama, write_smollm3>},
    {"olmo2", written<nn::Llama, write_llama_of>},
    {"phi3", written<nn::Llama, write_phi3>},
    {"gemma2", written<nn::Llama, write_gemma2>},
    {"gemma3_text", written<nn::Llama, write_gemma3>},
    {"deepseek_v3", written<nn::DeepSeek, write_deepseek_v3>},
    {"deepseek_v2", written<nn::DeepSeek, write_deepseek>},
};

const FamilyText* family_text(const std::string& name) {
  const auto found = std::find_if(std::begin(family_texts), std::end(family_texts),
                                  [&](const FamilyText& f) { return name == f.name; });
  return found == std::end(family_texts) ? nullptr : found;
}

// Returns the text without ids and dtype, or nothing if the family has a different architecture.
std::optional<JsonMembers> model_text(const FamilyText& family, const ModelConfig& model) {
  JsonMembers to;
  if (!family.write(model, to)) return std::nullopt;
  to.set("model_type", family.name);
  to.set("tie_word_embeddings", model.tied_head);
  return to;
}

}  // namespace

std::vector<std::string> hf_written_families() {
  std::vector<std::string> names;
  for (const FamilyText& f : family_texts) names.emplace_back(f.name);
  return names;
}

std::optional<std::string> hf_model_text(const std::string& family, const ModelConfig& model) {
  const FamilyText* known = family_text(family);
  const auto text = known == nullptr ? std::nullopt : model_text(*known, model);
  return text ? std::optional(text->text()) : std::nullopt;
}

std::string hf_config_json(const HfConfig& config, DType dtype) {
  const FamilyText* family = family_text(config.family);
  auto text = family == nullptr ? std::nullopt : model_text(*family, hf_plain(config.model));
  if (!text) throw Error("[hf_config] " + config.family + " is not a family of this model");
  text->set("architectures", std::vector<std::string>{config.head});
  text->set("dtype", std::string(hf_dtype_name(dtype)));
  // These keys are always written. Otherwise the classes would use default ids, which are for other
  // vocabularies.
  text->set("bos_token_id", config.start_token);
  text->set("pad_token_id", config.padding_token);
  if (config.end_tokens.size() > 1)
    text->set("eos_token_id", config.end_tokens);
  else
    text->set("eos_token_id", config.end_tokens.empty() ? std::nullopt : std::optional(config.end_tokens[0]));
  return text->text();
}

std::string hf_config_with_dtype(std::string_view text, const std::string& where, DType dtype) {
  JsonObject json(text, where);
  const std::string name(hf_dtype_name(dtype));
  bool is_said = false, is_right = true;
  for (const char* key : {"dtype", "torch_dtype"}) {  // transformers 4 uses the second key
    if (!json.has(key)) continue;
    is_said = true, is_right &= json.string(key, "") == name;
    json.set(key, json_string(name));
  }
  if (is_said && is_right) return std::string(text);
  if (!is_said) json.set("dtype", json_string(name));
  return json.text();
}

std::string hf_generation_json(const HfConfig& config) {
  JsonMembers to;
  if (config.start_token) to.set("bos_token_id", *config.start_token);
  if (config.padding_token) to.set("pad_token_id", *config.padding_token);
  if (config.end_tokens.size() == 1) to.set("eos_token_id", config.end_tokens[0]);
  if (config.end_tokens.size() > 1) to.set("eos_token_id", config.end_tokens);
  return to.text();
}

std::string_view hf_dtype_name(DType dtype) {
  return dtype == f64 ? "float64" : dtype == f32 ? "float32" : dtype == bf16 ? "bfloat16" : "float16";
}

}  // namespace tg::io
