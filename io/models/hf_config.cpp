#include "io/models/hf_config.h"

#include <algorithm>
#include <cmath>

#include <tilegrad/core/base/error.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include "io/files/json_object.h"

namespace tg::io {

namespace {

// Default values of keys, which differ between families.
struct Usual {
  std::int64_t context = 2048;
  std::int64_t key_heads = 0;   // 0: as many as heads
  std::int64_t head_width = 0;  // 0: hidden_size / num_attention_heads
  double eps = 1e-6, theta = 10000;
  bool is_tied = false;
};

struct Family {
  const char* name;
  const char* head;
  void (*read)(const JsonObject& json, const Usual& usual, HfConfig& to);
  Usual usual = {};
};

void must_be(const JsonObject& json, const char* key, bool expected) {
  if (json.boolean(key, expected) != expected) json.refuse(key, expected ? "true" : "false");
}

// Limits the number of layers. With a larger number, a small file could cause more than 64 KiB to be
// allocated before its tensors are known to exist.
std::int64_t layers_of(const JsonObject& json, const char* key) {
  constexpr std::int64_t most = JsonObject::most_items;
  const std::int64_t layers = json.integer(key);
  if (layers < 1 || layers > most) json.refuse(key, "1 to " + std::to_string(most) + " layers");
  return layers;
}

using Activations = std::vector<std::pair<std::string, std::string>>;  // Hugging Face's name, our name
const Activations& silus = *new Activations{{"silu", "silu"}, {"swish", "silu"}};

std::string activation_of(const JsonObject& json, const char* key, const char* usual,
                          const Activations& known) {
  const std::string name = json.string(key, usual);
  for (const auto& [theirs, ours] : known)
    if (name == theirs) return ours;
  json.refuse(key, list_text(known, " or ", [](const auto& a) { return a.first; }));
}

// ---- GPT-2

void read_gpt2(const JsonObject& json, const Usual& usual, HfConfig& to) {
  // GPT-2's class accepts both names of each pair.
  for (const auto& [name, other] : {std::pair{"n_embd", "hidden_size"},
                                    {"n_positions", "max_position_embeddings"},
                                    {"n_head", "num_attention_heads"},
                                    {"n_layer", "num_hidden_layers"}})
    if (json.is_set(other) && json.integer(other) != json.integer(name))
      json.refuse(other, json.json(name) + ", as " + name);
  must_be(json, "scale_attn_weights", true);
  must_be(json, "scale_attn_by_inverse_layer_idx", false);
  must_be(json, "add_cross_attention", false);
  nn::ModelConfig& m = to.model;
  m.vocabulary = json.integer("vocab_size"), m.context = json.integer("n_positions");
  m.layers = layers_of(json, "n_layer"), m.heads = json.integer("n_head"), m.width = json.integer("n_embd");
  m.bias = true;
  m.tied_head = json.boolean("tie_word_embeddings", usual.is_tied);
  m.architecture =
      nn::Gpt{.activation = activation_of(
                  json, "activation_function", "gelu_new",
                  {{"gelu_new", "gelu_tanh"}, {"gelu_pytorch_tanh", "gelu_tanh"}, {"gelu", "gelu"}}),
              .mlp_width = json.integer("n_inner", 0),
              .eps = json.number("layer_norm_epsilon", 1e-5)};
}

// ---- Llama and related models

// Reads sizes and the kind of head. Their keys are the same for all these models.
void read_sizes(const JsonObject& json, const Usual& usual, HfConfig& to) {
  nn::ModelConfig& m = to.model;
  m.vocabulary = json.integer("vocab_size");
  m.context = json.integer("max_position_embeddings", usual.context);
  m.layers = layers_of(json, "num_hidden_layers"), m.heads = json.integer("num_attention_heads");
  m.width = json.integer("hidden_size");
  m.tied_head = json.boolean("tie_word_embeddings", usual.is_tied);
}

// Returns the number of rotated elements per head for a fraction `share`. The result is at least 1, because 0
// would mean all elements. The model later checks that the elements form pairs.
std::int64_t rotary_width_of(const nn::ModelConfig& model, const nn::Llama& l, double share) {
  const std::int64_t d =
      l.head_width != 0 ? l.head_width : model.width / std::max<std::int64_t>(1, model.heads);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(d) * share));
}

nn::Llama llama_with(const JsonObject& json, const Usual& usual, const HfRope& rope) {
  nn::Llama l{.mlp_width = json.integer("intermediate_size"),
              .theta = rope.theta,
              .eps = json.number("rms_norm_eps", usual.eps),
              .scaling = rope.scaling};
  // null means: equal to the number of heads.
  l.key_heads = json.integer("num_key_value_heads", json.has("num_key_value_heads") ? 0 : usual.key_heads);
  l.head_width = json.integer("head_dim", usual.head_width);
  l.attention_bias = json.boolean("attention_bias", false);
  return l;
}

HfUsualRope usual_rope(const Usual& usual, const HfConfig& of) {
  return {
      .theta = usual.theta, .context = static_cast<double>(of.model.context), .is_phi3 = of.family == "phi3"};
}

nn::Llama llama_of(const JsonObject& json, const Usual& usual, HfConfig& to) {
  read_sizes(json, usual, to);
  const HfRope rope = hf_rope(json, usual_rope(usual, to));
  nn::Llama l = llama_with(json, usual, rope);
  if (rope.share != 1) l.rotary_width = rotary_width_of(to.model, l, rope.share);
  l.activation = activation_of(json, "hidden_act", "silu", silus);
  return l;
}

// Returns windows of `window` keys (0: none) for the layers that layer_types specifies. If layer_types is
// missing, `is_local` specifies them.
std::vector<std::int64_t> windows_of(const JsonObject& json, std::int64_t layers, std::int64_t window,
                                     const std::function<bool(std::int64_t)>& is_local) {
  std::vector<std::int64_t> windows;
  if (json.is_set("layer_types")) {
    for (const std::string& type : json.strings("layer_types")) {
      if (type != "full_attention" && type != "sliding_attention")
        json.refuse("layer_types", "full_attention and sliding_attention only");
      if (type == "sliding_attention" && window == 0)
        json.refuse("sliding_window", "a number of tokens: layer_types has sliding_attention");
      windows.push_back(type == "sliding_attention" ? window : 0);
    }
    if (std::ssize(windows) != layers)
      json.refuse("layer_types", "one for each of " + std::to_string(layers) + " layers");
  } else {
    for (std::int64_t i = 0; i < layers; ++i) windows.push_back(is_local(i) ? window : 0);
  }
  if (std::ranges::all_of(windows, [&](std::int64_t w) { return w == windows[0]; }))
    windows.resize(windows[0] == 0 ? 0 : 1);
  return windows;
}

std::int64_t window_of(const JsonObject& json, std::int64_t usual) {
  if (json.has("sliding_window") && !json.is_set("sliding_window")) return 0;  // null: none
  const std::int64_t window = json.integer("sliding_window", usual);
  if (window < 1) json.refuse("sliding_window", "a positive number of tokens, or null");
  return window;
}

void read_llama(const JsonObject& json, const Usual& usual, HfConfig& to) {
  nn::Llama l = llama_of(json, usual, to);
  l.mlp_bias = json.boolean("mlp_bias", false);
  to.model.architecture = l;
}

void read_qwen(const JsonObject& json, const Usual& usual, HfConfig& to) {
  nn::Llama l = llama_of(json, usual, to);
  if (to.family == "qwen3")
    l.qk_norm = "head";
  else
    l.qkv_bias = true, l.attention_bias = false;  // the family has no such key
  const std::int64_t first = json.integer("max_window_layers", 28);
  const std::int64_t window = json.boolean("use_sliding_window", false) ? window_of(json, 4096) : 0;
  l.windows =
      windows_of(json, to.model.layers, window, [&](std::int64_t i) { return window > 0 && i >= first; });
  to.model.architecture = l;
}

void read_mistral(const JsonObject& json, const Usual& usual, HfConfig& to) {
  nn::Llama l = llama_of(json, usual, to);
  l.attention_bias = false;  // the family has no such key
  const std::int64_t window = window_of(json, 4096);
  l.windows = windows_of(json, to.model.layers, window, [](std::int64_t) { return true; });
  const bool has_window = !l.windows.empty();
  if (l.windows.size() > 1 || has_window != (window > 0))  // transformers does not read layer_types here
    json.refuse("layer_types", window > 0 ? "sliding_attention in every layer, as sliding_window specifies"
                                          : "full_attention in every layer, as sliding_window specifies");
  to.model.architecture = l;
}

void read_phi3(const JsonObject& json, const Usual& usual, HfConfig& to) {
  nn::Llama l = llama_of(json, usual, to);
  l.attention_bias = false;  // the family has no such key
  if (json.is_set("sliding_window")) l.windows = {window_of(json, 0)};
  to.model.architecture = l;
}

// Some layers have no rotary positions.
void read_smollm3(const JsonObject& json, const Usual& usual, HfConfig& to) {
  nn::Llama l = llama_of(json, usual, to);
  l.mlp_bias = json.boolean("mlp_bias", false);
  const std::int64_t layers = to.model.layers, interval = json.integer("no_rope_layer_interval", 4);
  if (json.is_set("no_rope_layers")) {
    l.rotated = json.integers("no_rope_layers");
    if (std::ssize(l.rotated) != layers)
      json.refuse("no_rope_layers", "a number for each of " + std::to_string(layers) + " layers");
  } else {
    if (interval < 1) json.refuse("no_rope_layer_interval", "a positive number of layers");
    for (std::int64_t i = 0; i < layers; ++i) l.rotated.push_back((i + 1) % interval != 0);
  }
  const bool has_windows = json.boolean("use_sliding_window", false) && json.is_set("sliding_window");
  l.windows = windows_of(json, layers, has_windows ? window_of(json, 0) : 0, [&](std::int64_t i) {
    return has_windows && l.rotated[static_cast<std::size_t>(i)] == 0;
  });
  to.model.architecture = l;
}

void read_olmo2(const JsonObject& json, const Usual& usual, HfConfig& to) {
  nn::Llama l = llama_of(json, usual, to);
  l.norms = "after", l.qk_norm = "whole";
  to.model.architecture = l;
}

// Reads a softcap. null means no limit.
double softcap_of(const JsonObject& json, const char* key, double usual) {
  if (!json.has(key)) return usual;
  const double softcap = json.number(key, 0);
  if (json.is_set(key) && !(softcap > 0)) json.refuse(key, "a positive number or null");
  return softcap;
}

// Layers with and without windows have different rotary positions. In transformers 5, rope_parameters has an
// object for each kind of layer. transformers 4 uses separate keys.
void read_gemma3_rope(const JsonObject& json, HfConfig& to, HfRope& whole, HfRope& local) {
  const auto context = static_cast<double>(to.model.context);
  whole.theta = json.number("rope_theta", 1e6), local.theta = json.number("rope_local_base_freq", 1e4);
  if (json.is_set("rope_scaling"))
    whole = hf_rope_of(json.object("rope_scaling"), json, {whole.theta, context});
  if (!json.is_set("rope_parameters")) return;
  const JsonObject both = json.object("rope_parameters");
  if (both.is_set("full_attention"))
    whole = hf_rope_of(both.object("full_attention"), json, {whole.theta, context});
  if (both.is_set("sliding_attention"))
    local = hf_rope_of(both.object("sliding_attention"), json, {local.theta, context});
  if (!local.scaling.is_none()) both.refuse("sliding_attention", "rope_type default");
}

void read_gemma(const JsonObject& json, const Usual& usual, HfConfig& to) {
  const bool is_third = to.family == "gemma3_text";
  read_sizes(json, usual, to);
  HfRope rope, local;
  if (is_third)
    read_gemma3_rope(json, to, rope, local);
  else
    rope = hf_rope(json, usual_rope(usual, to));
  nn::Llama l = llama_with(json, usual, rope);
  l.activation =
      activation_of(json, "hidden_activation", "gelu_pytorch_tanh", {{"gelu_pytorch_tanh", "gelu_tanh"}});
  l.norms = "both", l.plus_one = true;
  l.embedding_scale = std::sqrt(static_cast<double>(to.model.width));
  const double scalar = json.number("query_pre_attn_scalar", 256);
  if (!(scalar > 0)) json.refuse("query_pre_attn_scalar", "a positive number");
  l.attention_scale = 1 / std::sqrt(scalar);
  // Gemma 3's class reads this key but does not apply it.
  if (is_third && json.is_set("attn_logit_softcapping")) json.refuse("attn_logit_softcapping", "null");
  l.attention_softcap = softcap_of(json, "attn_logit_softcapping", is_third ? 0 : 50);
  l.logit_softcap = softcap_of(json, "final_logit_softcapping", is_third ? 0 : 30);
  const std::int64_t pattern = is_third ? json.integer("sliding_window_pattern", 6) : 2;
  if (pattern < 1) json.refuse("sliding_window_pattern", "a positive number of layers");
  const std::int64_t window = window_of(json, 4096);
  if (window == 0) json.refuse("sliding_window", "a positive number of tokens");
  l.windows =
      windows_of(json, to.model.layers, window, [&](std::int64_t i) { return (i + 1) % pattern != 0; });
  if (is_third) l.qk_norm = "head", l.window_theta = local.theta;
  to.model.architecture = l;
}

// ---- DeepSeek with dense layers

void read_deepseek(const JsonObject& json, const Usual& usual, HfConfig& to) {
  const bool is_v3 = to.family == "deepseek_v3";
  read_sizes(json, usual, to);
  const HfRope rope = hf_rope(json, usual_rope(usual, to));
  if (json.integer("first_k_dense_replace", is_v3 ? 3 : 0) < to.model.layers)
    json.refuse("first_k_dense_replace", std::to_string(to.model.layers) +
                                             ", the number of layers: mixture-of-experts layers are not "
                                             "supported");
  if (const std::int64_t k = json.integer("num_key_value_heads", to.model.heads); k != to.model.heads)
    json.refuse("num_key_value_heads", std::to_string(to.model.heads) + ", num_attention_heads");
  if (!is_v3) must_be(json, "mlp_bias", false);
  activation_of(json, "hidden_act", "silu", silus);
  nn::DeepSeek d{.latent = json.integer("kv_lora_rank", 512),
                 .query_latent = json.integer("q_lora_rank", json.has("q_lora_rank") ? 0 : 1536),
                 .rope_width = json.integer("qk_rope_head_dim", 64),
                 .mlp_width = json.integer("intermediate_size"),
                 .theta = rope.theta,
                 .head_width = json.integer("qk_nope_head_dim", 128),
                 .value_width = json.integer("v_head_dim", 128),
                 .eps = json.number("rms_norm_eps", usual.eps),
                 .attention_bias = json.boolean("attention_bias", false),
                 .interleaved = !is_v3 || json.boolean("rope_interleave", true),
                 .scaling = rope.scaling};
  if (rope.score_scale != 1)
    d.attention_scale = rope.score_scale / std::sqrt(static_cast<double>(d.head_width + d.rope_width));
  to.model.architecture = d;
}

const std::vector<Family>& families() {
  static const auto& all = *new std::vector<Family>{
      {"gpt2", "GPT2LMHeadModel", read_gpt2, {.is_tied = true}},
      {"llama", "LlamaForCausalLM", read_llama},
      {"qwen2", "Qwen2ForCausalLM", read_qwen, {.context = 32768, .key_heads = 32}},
      {"qwen3", "Qwen3ForCausalLM", read_qwen, {.context = 32768, .key_heads = 32, .head_width = 128}},
      {"mistral", "MistralForCausalLM", read_mistral, {.context = 131072, .key_heads = 8}},
      {"smollm3",
       "SmolLM3ForCausalLM",
       read_smollm3,
       {.context = 32768, .key_heads = 4, .theta = 2e6, .is_tied = true}},
      {"olmo2", "Olmo2ForCausalLM", read_olmo2, {.eps = 1e-5}},
      {"phi3", "Phi3ForCausalLM", read_phi3, {.context = 4096, .eps = 1e-5}},
      {"gemma2",
       "Gemma2ForCausalLM",
       read_gemma,
       {.context = 8192, .key_heads = 4, .head_width = 256, .is_tied = true}},
      {"gemma3_text",
       "Gemma3ForCausalLM",
       read_gemma,
       {.context = 131072, .key_heads = 4, .head_width = 256, .is_tied = true}},
      {"deepseek_v2", "DeepseekV2ForCausalLM", read_deepseek},
      {"deepseek_v3", "DeepseekV3ForCausalLM", read_deepseek, {.context = 4096}},
  };
  return all;
}

// Reads a token id. An id outside the vocabulary counts as no id, because it never occurs. Examples are −1,
// and default ids of a model with a larger vocabulary.
void read_id(const JsonObject& json, const char* key, std::int64_t vocabulary,
             std::optional<std::int64_t>& to) {
  if (!json.is_set(key)) return;
  to = json.integer(key);
  if (*to < 0 || *to >= vocabulary) to.reset();
}

void read_ids(const JsonObject& json, HfConfig& to) {
  const std::int64_t vocabulary = to.model.vocabulary;
  if (json.is_set("eos_token_id")) {
    to.end_tokens = json.integers("eos_token_id");
    std::erase_if(to.end_tokens, [&](std::int64_t id) { return id < 0 || id >= vocabulary; });
  }
  read_id(json, "bos_token_id", vocabulary, to.start_token);
  read_id(json, "pad_token_id", vocabulary, to.padding_token);
}

// Rejects keys of other models that would change the results of a supported family.
void refuse_other_models(const JsonObject& json) {
  if (json.is_set("quantization_config"))
    json.refuse("quantization_config", "none: quantized weights cannot be read");
  must_be(json, "is_encoder_decoder", false);
  must_be(json, "use_bidirectional_attention", false);
  must_be(json, "use_parallel_residual", false);
  must_be(json, "is_causal", true);
  if (json.integer("num_local_experts", 0) > 1)
    json.refuse("num_local_experts", "none: mixture-of-experts layers are not supported");
}

}  // namespace

std::string hf_families() {
  return list_text(families(), ", ", &Family::name);
}

HfConfig parse_hf_config(std::string_view text, const std::string& where) {
  const JsonObject json(text, where);
  if (json.is_set("text_config"))
    json.refuse("text_config", "none: a model of more than text cannot be read");
  HfConfig c{.family = json.string("model_type")};
  const auto family = std::ranges::find_if(families(), [&](const Family& f) { return c.family == f.name; });
  if (family == families().end()) json.refuse("model_type", "one of " + hf_families());
  c.head = family->head;
  if (json.is_set("architectures") && json.strings("architectures") != std::vector{c.head})
    json.refuse("architectures", "[\"" + c.head + "\"]");
  refuse_other_models(json);
  with_format_errors(where, [&] {
    family->read(json, family->usual, c);
    read_ids(json, c);
    c.model.check();
  });
  return c;
}

void parse_hf_generation(std::string_view text, const std::string& where, HfConfig& config) {
  read_ids(JsonObject(text, where), config);
}

}  // namespace tg::io
