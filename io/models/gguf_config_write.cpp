// Writes the GGUF keys of a model, from which llama.cpp computes the same results.
#include <algorithm>
#include <cmath>
#include <numbers>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include "io/files/gguf_format.h"
#include "io/models/gguf_metadata.h"
#include "io/models/gguf_rules.h"
#include "io/models/tensor_names.h"

namespace tg::io {

namespace {

using nn::ModelConfig;

struct ConfigKeys {
  const HfConfig& config;
  const std::string& where;
  GgufStart& to;
  std::vector<std::string>& notes;
  std::string architecture = gguf_architecture(config.family);

  std::string key(const char* name) const { return architecture + "." + name; }
  void whole(const char* name, std::int64_t value) { to.add(key(name), static_cast<std::uint32_t>(value)); }
  void real(const char* name, double value) { to.add(key(name), static_cast<float>(value)); }
  [[noreturn]] void refuse(const std::string& what) const {
    throw FormatError(where + ": llama.cpp cannot compute " + what + " of " + config.family);
  }
  // Throws if the model has a property that the architecture cannot represent.
  void check(bool has, bool can, const std::string& what) const {
    if (has && !can) refuse(what);
  }

  void write() {
    const GgufArchitecture* known = gguf_architecture_named(architecture);
    if (known == nullptr) refuse("models");
    to.add("general.architecture", architecture);
    to.add("general.type", "model");
    const ModelConfig& m = config.model;
    check(m.layers > most_gguf_layers, false, std::to_string(m.layers) + " layers");
    if (known->head == (m.tied_head ? GgufArchitecture::Head::own : GgufArchitecture::Head::tied))
      refuse(std::string("tie_word_embeddings ") + (m.tied_head ? "true" : "false"));
    whole("vocab_size", m.vocabulary), whole("context_length", m.context), whole("embedding_length", m.width);
    whole("block_count", m.layers), whole("attention.head_count", m.heads);
    if (const auto* g = m.architecture.as<nn::Gpt>()) write_gpt(*g);
    if (const auto* l = m.architecture.as<nn::Llama>()) write_llama(*l, *known);
    if (const auto* d = m.architecture.as<nn::DeepSeek>()) write_deepseek(*d);
  }

  void write_gpt(const nn::Gpt& g) {
    if (g.activation != "gelu_tanh" && g.activation != "gelu") refuse("the activation " + g.activation);
    if (g.activation == "gelu")
      notes.push_back(
          "llama.cpp computes GELU by tanh: activations differ by up to 0.0005 from those of this model");
    whole("feed_forward_length", g.mlp_width == 0 ? 4 * config.model.width : g.mlp_width);
    real("attention.layer_norm_epsilon", g.eps);
  }

  // Writes the keys for scaled frequencies. Throws if llama.cpp would compute different frequencies from
  // these keys.
  void write_scaling(const nn::RopeScaling& s, std::int64_t d, double theta, double score_scale,
                     bool has_local_layers) {
    const bool is_deepseek = architecture == "deepseek2";
    GgufRope keys = gguf_rope_for(s, score_scale, is_deepseek);
    const bool is_list = s.type == "longrope" || s.type == "llama3";
    if (is_list) keys.attn_factor = s.magnitude;
    const GgufRotation theirs = gguf_rotation(keys, d, theta);
    const std::vector<double> ours =
        is_list ? theirs.frequencies : s.frequencies(d, theta, config.model.context);
    const std::string kind = "rope_type " + (s.is_none() ? "default" : s.type);
    if (!std::equal(ours.begin(), ours.end(), theirs.frequencies.begin(), theirs.frequencies.end(),
                    is_same_in_gguf))
      refuse(kind + other_frequencies(s));
    if (!is_same_in_gguf(theirs.magnitude, s.magnitude))
      refuse(kind + " with attention_factor " + json_number(s.magnitude));
    if (has_local_layers && !is_same_in_gguf(theirs.window_magnitude, 1))
      refuse(kind + " with attention_factor " + json_number(s.magnitude) + " and factor " +
             json_number(s.factor) + ", different from its usual one, with windowed layers,");
    if (is_deepseek && !is_same_in_gguf(theirs.score_scale, score_scale))
      refuse(kind + " with scores times " + json_number(score_scale));
    if (keys.type != "none") to.add(key("rope.scaling.type"), keys.type);
    if (keys.type != "none") real("rope.scaling.factor", keys.factor);
    if (keys.type == "yarn") whole("rope.scaling.original_context_length", std::llround(keys.original));
    if (keys.attn_factor != 1) real("rope.scaling.attn_factor", keys.attn_factor);
    if (keys.log_multiplier != 0) real("rope.scaling.yarn_log_multiplier", keys.log_multiplier);
  }

  // Returns a description of the scaling's settings that llama.cpp does not read.
  static std::string other_frequencies(const nn::RopeScaling& s) {
    std::string text;
    const auto add = [&](bool is_usual, const char* name, const std::string& value) {
      if (!is_usual) text += (text.empty() ? " with " : ", ") + std::string(name) + " " + value;
    };
    add(s.type != "yarn" || s.whole_pairs, "truncate", "false");
    add(s.beta_fast == 32, "beta_fast", json_number(s.beta_fast));
    add(s.beta_slow == 1, "beta_slow", json_number(s.beta_slow));
    if (text.empty()) add(false, "original_max_position_embeddings", json_number(s.first_context));
    return text;
  }

  void write_windows(const nn::Llama& l, const GgufArchitecture& known) {
    const std::int64_t layers = config.model.layers, usual = usual_gguf_pattern(architecture);
    std::int64_t window = 0;
    std::vector<bool> is_local;
    bool is_usual = true, is_everywhere = true;
    for (std::int64_t i = 0; i < layers; ++i) {
      const std::int64_t w = of_gguf_layer(l.windows, i, 0);
      if (w > 0 && window > 0 && w != window) refuse("windows of several sizes");
      window = std::max(window, w);
      is_local.push_back(w > 0);
      is_usual &= usual > 0 && (w > 0) == ((i + 1) % usual != 0);
      is_everywhere &= w > 0;
    }
    if (architecture == "phi3") whole("attention.sliding_window", window);
    // In llama.cpp, some layers of gemma2 always have windows. Windows of the context's length have no
    // effect.
    if (window == 0 && architecture == "gemma2") window = config.model.context, is_usual = true;
    if (window == 0) return;
    if (architecture != "phi3") whole("attention.sliding_window", window);
    if (!(usual > 0 ? is_usual : is_everywhere))
      to.add_booleans(key("attention.sliding_window_pattern"), is_local);
    if (!known.windows && window < config.model.context)
      notes.push_back("llama.cpp has no windows in models of this kind: it is right for sequences of up to " +
                      std::to_string(window) + " tokens");
  }

  // Returns the number by which config.json represents a scale of scores.
  static std::string scalar_of(double scale) {
    const double scalar = 1 / (scale * scale);
    return json_number(is_same_in_gguf(scalar, std::round(scalar)) ? std::round(scalar) : scalar);
  }

  void write_llama(const nn::Llama& l, const GgufArchitecture& known) {
    const ModelConfig& m = config.model;
    const std::int64_t d = l.head_width == 0 ? m.width / m.heads : l.head_width;
    const std::int64_t turning = l.rotary_width == 0 ? d : l.rotary_width;
    const bool is_phi = architecture == "phi3", is_list = l.scaling.type == "longrope";
    check(l.attention_bias || m.bias, known.output_bias, "attention_bias true");
    check(l.qkv_bias, known.qkv_bias, "biases of queries, keys and values");
    check(l.mlp_bias || m.bias, known.mlp_bias, "mlp_bias true");
    check(turning != d, known.partial_rotary,
          "partial_rotary_factor " + json_number(static_cast<double>(turning) / static_cast<double>(d)));
    check(d * m.heads != m.width, known.any_head_width,
          "head_dim " + std::to_string(d) + ", other than hidden_size / num_attention_heads,");
    check(l.activation != (known.gelu ? "gelu_tanh" : "silu"), false, "the activation " + l.activation);
    check(l.attention_softcap != 0, known.attention_softcap,
          "attn_logit_softcapping " + json_number(l.attention_softcap));
    check(l.attention_softcap == 0, !known.attention_softcap, "attn_logit_softcapping null");
    check(l.logit_softcap != 0, known.logit_softcap,
          "final_logit_softcapping " + json_number(l.logit_softcap));
    check(l.logit_softcap == 0, !known.attention_softcap, "final_logit_softcapping null");
    check(l.scaling.type == "llama3", known.divisors, "rope_type llama3");
    const bool has_one_list = l.scaling.short_factors == l.scaling.long_factors;
    check(is_list, known.longrope || (known.divisors && has_one_list), "rope_type longrope");
    for (std::int64_t i = 0; i < m.layers; ++i)
      check((of_gguf_layer(l.rotated, i, 1) != 0) !=
                (known.unrotated_period == 0 || (i + 1) % known.unrotated_period != 0),
            false, "no_rope_layers with rotary positions in unusual layers");
    const bool is_by_width = known.layers_by_width == m.layers;
    const double scale = 1 / std::sqrt(static_cast<double>(is_by_width ? m.width / m.heads : d));
    if (l.attention_scale != 0 && !is_same_in_gguf(l.attention_scale, scale))
      refuse("query_pre_attn_scalar " + scalar_of(l.attention_scale) + ", other than " + scalar_of(scale) +
             ",");

    whole("feed_forward_length", l.mlp_width);
    whole("attention.head_count_kv", l.key_heads == 0 ? m.heads : l.key_heads);
    real("attention.layer_norm_rms_epsilon", l.eps), real("rope.freq_base", l.theta);
    whole("attention.key_length", d), whole("attention.value_length", d);
    whole("rope.dimension_count", turning);
    if (l.attention_softcap != 0) real("attn_logit_softcapping", l.attention_softcap);
    if (l.logit_softcap != 0) real("final_logit_softcapping", l.logit_softcap);
    const bool has_local =
        architecture == "gemma3" && std::ranges::any_of(l.windows, [](auto w) { return w > 0; });
    if (architecture == "gemma3") real("rope.freq_base_swa", l.window_theta == 0 ? l.theta : l.window_theta);
    if (has_local && l.window_theta == 0) check(!l.scaling.is_none(), false, "scaled frequencies in windows");
    write_scaling(l.scaling, turning, l.theta, 1, has_local);
    if (is_phi)
      whole("rope.scaling.original_context_length",
            is_list ? std::llround(l.scaling.first_context) : m.context);
    write_windows(l, known);
  }

  void write_deepseek(const nn::DeepSeek& d) {
    const ModelConfig& m = config.model;
    const std::int64_t keys = d.head_width == 0 ? m.width / m.heads : d.head_width;
    const double usual = 1 / std::sqrt(static_cast<double>(keys + d.rope_width));
    if (d.attention_bias || m.bias) refuse("attention_bias true");
    if (!d.interleaved) refuse("rope_interleave false");
    if (!is_same_in_gguf(d.eps, 1e-6))
      refuse("rms_norm_eps " + json_number(d.eps) + ", other than that of the latents, 1e-06,");
    whole("feed_forward_length", d.mlp_width);
    whole("attention.head_count_kv", 1);  // all heads share the latent
    real("attention.layer_norm_rms_epsilon", d.eps), real("rope.freq_base", d.theta);
    const bool is_lite = m.layers == 26 || m.layers == 27 || (m.layers == 48 && m.vocabulary == 128256);
    if (is_lite && d.query_latent != 0)  // llama.cpp does not read the key in this case
      refuse("q_lora_rank " + std::to_string(d.query_latent) + " in " + std::to_string(m.layers) + " layers");
    if (!is_lite) whole("attention.q_lora_rank", d.query_latent);  // otherwise it is required
    whole("attention.kv_lora_rank", d.latent);
    whole("attention.key_length", d.latent + d.rope_width), whole("attention.value_length", d.latent);
    whole("attention.key_length_mla", keys + d.rope_width);
    whole("attention.value_length_mla", d.value_width == 0 ? keys : d.value_width);
    whole("rope.dimension_count", d.rope_width);
    whole("leading_dense_block_count", m.layers);
    whole("expert_feed_forward_length", d.mlp_width), whole("expert_shared_count", 0);
    check(d.scaling.type == "llama3" || d.scaling.type == "longrope", false, "rope_type " + d.scaling.type);
    const double score = d.attention_scale == 0 ? 1 : d.attention_scale / usual;
    write_scaling(d.scaling, d.rope_width, d.theta, score, false);
  }
};

// Computes the divisors in f32, like llama.cpp's converter.
std::vector<float> llama3_divisors(const nn::RopeScaling& s, std::int64_t d, double theta) {
  const auto factor = static_cast<float>(s.factor), low = static_cast<float>(s.low_frequency),
             high = static_cast<float>(s.high_frequency), context = static_cast<float>(s.first_context);
  std::vector<float> divisors;
  for (std::int64_t i = 0; i < d; i += 2) {
    const float omega =
        1 / std::pow(static_cast<float>(theta), static_cast<float>(i) / static_cast<float>(d));
    const float wave = static_cast<float>(2 * std::numbers::pi) / omega;
    const float kept = (context / wave - low) / (high - low);
    divisors.push_back(wave < context / high  ? 1
                       : wave > context / low ? factor
                                              : 1 / ((1 - kept) / factor + kept));
  }
  return divisors;
}

std::vector<float> in_f32(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

void add_gguf_config(const HfConfig& config, const std::string& where, GgufStart& to,
                     std::vector<std::string>& notes) {
  ConfigKeys{config, where, to, notes}.write();
}

std::vector<GgufFactors> gguf_factors(const HfConfig& config) {
  const auto* l = config.model.architecture.as<nn::Llama>();
  if (l == nullptr) return {};
  const nn::RopeScaling& s = l->scaling;
  const std::int64_t d = l->head_width == 0 ? config.model.width / config.model.heads : l->head_width;
  if (s.type == "llama3") return {{"rope_freqs.weight", llama3_divisors(s, d, l->theta)}};
  if (s.type != "longrope") return {};
  if (config.family != "phi3") return {{"rope_freqs.weight", in_f32(s.long_factors)}};
  return {{"rope_factors_long.weight", in_f32(s.long_factors)},
          {"rope_factors_short.weight", in_f32(s.short_factors)}};
}

}  // namespace tg::io
