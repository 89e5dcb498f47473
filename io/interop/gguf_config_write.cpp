// Keys of a model, for llama.cpp.
#include <algorithm>
#include <cmath>
#include <numbers>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include "io/interop/gguf_config.h"
#include "io/interop/gguf_names.h"
#include "io/interop/gguf_start.h"
#include "io/interop/gguf_windows.h"
#include "io/interop/hf_rope.h"

namespace tg::io {

namespace {

using nn::ModelConfig;

bool is_near(double a, double b) {
  return std::abs(a - b) <= 1e-6 * std::max(std::abs(a), std::abs(b));
}

// m⁻¹ of the square root of what the scale of DeepSeek's scores is more than 1/√width.
double mscale_of(double score_scale, double factor) {
  return factor <= 1 ? 0 : (std::sqrt(score_scale) - 1) / (0.1 * std::log(factor));
}

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

  void write() {
    if (architecture.empty()) refuse("models");
    to.add("general.architecture", architecture);
    to.add("general.type", "model");
    const ModelConfig& m = config.model;
    whole("vocab_size", m.vocabulary), whole("context_length", m.context), whole("embedding_length", m.width);
    whole("block_count", m.layers), whole("attention.head_count", m.heads);
    if (const auto* g = m.architecture.as<nn::Gpt>()) write_gpt(*g);
    if (const auto* l = m.architecture.as<nn::Llama>()) write_llama(*l);
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

  // What `writes_scaling` says not of longrope and llama3, whose frequencies are in tensors.
  void write_scaling(const nn::RopeScaling& s, double usual_magnitude) {
    if (s.type == "linear") to.add(key("rope.scaling.type"), "linear"), real("rope.scaling.factor", s.factor);
    if (s.type != "yarn") return;
    if (!s.whole_pairs) refuse("YaRN with truncate false");
    to.add(key("rope.scaling.type"), "yarn"), real("rope.scaling.factor", s.factor);
    whole("rope.scaling.original_context_length", std::llround(s.first_context));
    if (s.beta_fast != 32) real("rope.scaling.yarn_beta_fast", s.beta_fast);
    if (s.beta_slow != 1) real("rope.scaling.yarn_beta_slow", s.beta_slow);
    // Sine and cosine: llama.cpp multiplies what it computes by this.
    if (!is_near(s.magnitude, usual_magnitude))
      real("rope.scaling.attn_factor", s.magnitude / usual_magnitude);
  }

  void write_windows(const nn::Llama& l) {
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
    if (window == 0 && usual > 0) window = config.model.context;
    if (window == 0) return;
    if (architecture != "phi3") whole("attention.sliding_window", window);
    if (!(usual > 0 ? is_usual : is_everywhere))
      to.add_booleans(key("attention.sliding_window_pattern"), is_local);
    if (usual == 0 && window < config.model.context)
      notes.push_back("llama.cpp has no windows in models of this kind: it is right for texts up to " +
                      std::to_string(window) + " tokens");
  }

  void write_llama(const nn::Llama& l) {
    const ModelConfig& m = config.model;
    const std::int64_t d = l.head_width == 0 ? m.width / m.heads : l.head_width;
    const bool is_gemma = l.plus_one, is_phi = config.family == "phi3";
    whole("feed_forward_length", l.mlp_width);
    whole("attention.head_count_kv", l.key_heads == 0 ? m.heads : l.key_heads);
    real("attention.layer_norm_rms_epsilon", l.eps), real("rope.freq_base", l.theta);
    whole("attention.key_length", d), whole("attention.value_length", d);
    whole("rope.dimension_count", l.rotary_width == 0 ? d : l.rotary_width);
    if (l.rotary_width != 0 && l.rotary_width != d && !is_phi) refuse("heads that turn in part");
    if ((config.family == "qwen2" || config.family == "olmo2" || is_phi) && d * m.heads != m.width)
      refuse("heads of " + std::to_string(d) + ", other than width / heads,");
    if (config.family == "olmo2" && m.tied_head) refuse("an output that is the embedding");
    const bool is_largest = m.layers == (config.family == "gemma2" ? 46 : 62);
    const double scale = 1 / std::sqrt(static_cast<double>(is_gemma && is_largest ? m.width / m.heads : d));
    if (l.attention_scale != 0 && !is_near(l.attention_scale, scale))
      refuse("scores times " + json_number(l.attention_scale) + ", other than " + json_number(scale) + ",");
    if (config.family == "gemma2") {
      if (l.attention_softcap == 0 || l.logit_softcap == 0) refuse("scores and logits without softcaps");
      real("attn_logit_softcapping", l.attention_softcap);
    } else if (l.attention_softcap != 0) {
      refuse("softcaps of scores");
    }
    if (l.logit_softcap != 0) real("final_logit_softcapping", l.logit_softcap);
    if (config.family == "gemma3_text")
      real("rope.freq_base_swa", l.window_theta == 0 ? l.theta : l.window_theta);
    for (std::int64_t i = 0; i < m.layers; ++i)
      if ((of_gguf_layer(l.rotated, i, 1) != 0) != (config.family != "smollm3" || (i + 1) % 4 != 0))
        refuse("rotary positions in other layers than usual");
    const bool has_pairs =
        config.family == "llama" || config.family == "mistral" || config.family == "smollm3";
    if ((l.scaling.type == "llama3" || (l.scaling.type == "longrope" && !is_phi)) && !has_pairs)
      refuse("rotary positions of type " + l.scaling.type);
    if (l.scaling.type == "longrope" && !is_phi &&
        (l.scaling.magnitude != 1 || l.scaling.short_factors != l.scaling.long_factors))
      refuse("rotary positions of type longrope");
    write_scaling(l.scaling, yarn_growth(l.scaling.factor, 1));
    if (is_phi) {
      const bool is_long = l.scaling.type == "longrope";
      whole("rope.scaling.original_context_length",
            is_long ? std::llround(l.scaling.first_context) : m.context);
      if (is_long) real("rope.scaling.attn_factor", l.scaling.magnitude);
    }
    write_windows(l);
  }

  void write_deepseek(const nn::DeepSeek& d) {
    const ModelConfig& m = config.model;
    const std::int64_t keys = d.head_width == 0 ? m.width / m.heads : d.head_width;
    const double usual = 1 / std::sqrt(static_cast<double>(keys + d.rope_width));
    if (d.attention_bias || m.bias) refuse("attention_bias true");
    if (!d.interleaved) refuse("rope_interleave false");
    if (!is_near(d.eps, 1e-6))
      refuse("rms_norm_eps " + json_number(d.eps) + ", other than that of the latents, 1e-06,");
    whole("feed_forward_length", d.mlp_width);
    whole("attention.head_count_kv", 1);  // all heads share the latent
    real("attention.layer_norm_rms_epsilon", d.eps), real("rope.freq_base", d.theta);
    const bool is_lite = m.layers == 26 || m.layers == 27 || (m.layers == 48 && m.vocabulary == 128256);
    if (is_lite && d.query_latent != 0)  // llama.cpp does not read it then
      refuse("q_lora_rank " + std::to_string(d.query_latent) + " in " + std::to_string(m.layers) + " layers");
    if (!is_lite) whole("attention.q_lora_rank", d.query_latent);  // else it must be there
    whole("attention.kv_lora_rank", d.latent);
    whole("attention.key_length", d.latent + d.rope_width), whole("attention.value_length", d.latent);
    whole("attention.key_length_mla", keys + d.rope_width);
    whole("attention.value_length_mla", d.value_width == 0 ? keys : d.value_width);
    whole("rope.dimension_count", d.rope_width);
    whole("leading_dense_block_count", m.layers);
    whole("expert_feed_forward_length", d.mlp_width), whole("expert_shared_count", 0);
    if (d.scaling.type == "llama3" || d.scaling.type == "longrope")
      refuse("rotary positions of type " + d.scaling.type);
    const double score = d.attention_scale == 0 ? 1 : d.attention_scale / usual;
    const double mscale = is_near(score, 1) ? 0 : mscale_of(score, d.scaling.factor);
    if (!is_near(score, 1) && d.scaling.type != "yarn")
      refuse("scores times " + json_number(d.attention_scale));
    write_scaling(d.scaling, mscale != 0 ? 1 : yarn_growth(d.scaling.factor, 1));
    if (mscale != 0) real("rope.scaling.yarn_log_multiplier", 0.1 * mscale);
  }
};

// As llama.cpp's converter computes them, in f32.
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
