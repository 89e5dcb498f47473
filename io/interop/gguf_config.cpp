#include "io/interop/gguf_config.h"

#include <algorithm>
#include <cmath>

#include <tilegrad/core/base/error.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include "io/interop/gguf_names.h"

namespace tg::io {

namespace {

using nn::ModelConfig;

// What llama.cpp has no key for is one thing in each architecture.
class Fixed {
 public:
  Fixed(const HfConfig& config, const std::string& where) : config_(config), where_(where) {}
  void must(bool is_so, const std::string& setting) const {
    if (!is_so)
      throw FormatError(where_ + ": llama.cpp's " + gguf_architecture(config_.family) + " has no " + setting);
  }

 private:
  const HfConfig& config_;
  const std::string& where_;
};

std::int64_t width_of_head(const ModelConfig& m, const nn::Llama& l) {
  return l.head_width == 0 ? m.width / m.heads : l.head_width;
}

bool is_near(double a, double b) {
  return std::abs(a - b) <= 1e-6 * std::abs(b);
}

// Layer i has that window, or none.
bool has_windows_in(const ModelConfig& m, const nn::Llama& l, std::int64_t every) {
  for (std::int64_t i = 0; i < m.layers; ++i) {
    const auto n = static_cast<std::size_t>(i);
    const bool is_local = !l.windows.empty() && l.windows[n % l.windows.size()] > 0;
    if (is_local != ((i + 1) % every != 0)) return false;
  }
  return true;
}

bool is_gemma(const std::string& family) {
  return family == "gemma2" || family == "gemma3_text";
}

void check_llama(const HfConfig& c, const nn::Llama& l, const Fixed& fixed) {
  const ModelConfig& m = c.model;
  const bool gemma = is_gemma(c.family);
  fixed.must(l.activation == (gemma ? "gelu_tanh" : "silu"), "activation " + l.activation);
  fixed.must(gemma || (l.embedding_scale == 1 && l.attention_softcap == 0 && l.logit_softcap == 0),
             "scaled embeddings or softcaps");
  const double usual = 1 / std::sqrt(static_cast<double>(width_of_head(m, l)));
  fixed.must(l.attention_scale == 0 || is_near(l.attention_scale, usual),
             "attention_scale " + std::to_string(l.attention_scale));
  if (gemma) {
    fixed.must(is_near(l.embedding_scale, std::sqrt(static_cast<double>(m.width))),
               "embedding_scale " + std::to_string(l.embedding_scale));
    fixed.must(has_windows_in(m, l, c.family == "gemma2" ? 2 : 6), "other windows than in its usual layers");
    fixed.must(c.family == "gemma2" || l.attention_softcap == 0, "attention_softcap");
    fixed.must(m.tied_head, "head of its own");
  }
  if (c.family == "gemma3_text")
    fixed.must(l.window_theta == 0 || l.window_theta == 10000, "theta of windows but 10000");
  if (c.family == "smollm3")
    for (std::int64_t i = 0; i < m.layers; ++i) {
      const bool turns = l.rotated.empty() || l.rotated[static_cast<std::size_t>(i) % l.rotated.size()] != 0;
      fixed.must(turns == ((i + 1) % 4 != 0), "other layers without rotary positions than every fourth");
    }
  const bool biases = c.family == "llama" || c.family == "smollm3";
  fixed.must(biases || (!l.attention_bias && !l.mlp_bias), "biases");
  fixed.must(c.family != "qwen2" || width_of_head(m, l) * m.heads == m.width,
             "head_width that is not width / heads");
  const nn::RopeScaling& s = l.scaling;
  fixed.must(s.type == "none" || s.type == "linear" || s.type == "yarn" ||
                 (s.type == "llama3" && gguf_architecture(c.family) == "llama"),
             "rotary positions of type " + s.type);
  fixed.must(!gemma || s.type == "none" || s.type == "linear", "rotary positions of type " + s.type);
  fixed.must(l.rotary_width == 0, "rotary_width");
  if (s.type == "yarn") {
    fixed.must(s.whole_pairs, "yarn without truncate");
    fixed.must(is_near(s.magnitude, s.factor <= 1 ? 1 : 0.1 * std::log(s.factor) + 1),
               "attention_factor of yarn");
  }
}

void put_scaling(const std::string& a, const nn::RopeScaling& s, GgufStart& to) {
  if (s.type != "linear" && s.type != "yarn") return;
  to.string(a + "rope.scaling.type", s.type);
  to.f32(a + "rope.scaling.factor", s.factor);
  if (s.type != "yarn") return;
  to.u32(a + "rope.scaling.original_context_length", static_cast<std::int64_t>(s.first_context));
  to.f32(a + "rope.scaling.yarn_beta_fast", s.beta_fast);
  to.f32(a + "rope.scaling.yarn_beta_slow", s.beta_slow);
}

void put_llama(const HfConfig& c, const nn::Llama& l, const std::string& a, GgufStart& to) {
  const ModelConfig& m = c.model;
  to.u32(a + "feed_forward_length", l.mlp_width);
  to.u32(a + "attention.head_count", m.heads);
  to.u32(a + "attention.head_count_kv", l.key_heads == 0 ? m.heads : l.key_heads);
  to.f32(a + "attention.layer_norm_rms_epsilon", l.eps);
  to.u32(a + "attention.key_length", width_of_head(m, l));
  to.u32(a + "attention.value_length", width_of_head(m, l));
  to.f32(a + "rope.freq_base", l.theta);
  put_scaling(a, l.scaling, to);
  if (gguf_architecture(c.family) == "llama" || c.family == "smollm3") {
    to.u32(a + "vocab_size", m.vocabulary);
    to.u32(a + "rope.dimension_count", width_of_head(m, l));
  }
  if (c.family == "phi3") {
    to.u32(a + "rope.dimension_count", width_of_head(m, l));
    to.u32(a + "rope.scaling.original_context_length", m.context);
    to.u32(a + "attention.sliding_window", l.windows.empty() ? 0 : l.windows[0]);
  }
  if (is_gemma(c.family))
    to.u32(a + "attention.sliding_window", *std::max_element(l.windows.begin(), l.windows.end()));
  if (c.family == "gemma3_text")
    to.f32(a + "rope.freq_base_swa", l.window_theta == 0 ? l.theta : l.window_theta);
  if (l.attention_softcap != 0) to.f32(a + "attn_logit_softcapping", l.attention_softcap);
  if (l.logit_softcap != 0) to.f32(a + "final_logit_softcapping", l.logit_softcap);
}

void put_gpt2(const ModelConfig& m, const nn::Gpt& g, const std::string& a, GgufStart& to) {
  to.u32(a + "feed_forward_length", g.mlp_width == 0 ? 4 * m.width : g.mlp_width);
  to.u32(a + "attention.head_count", m.heads);
  to.f32(a + "attention.layer_norm_epsilon", g.eps);
}

}  // namespace

std::int64_t gguf_context(const HfConfig& c) {
  const auto* l = c.model.architecture.as<nn::Llama>();
  std::int64_t most = c.model.context;
  if (l == nullptr || is_gemma(c.family) || c.family == "phi3") return most;
  for (const std::int64_t window : l->windows)
    if (window > 0) most = std::min(most, window);
  return most;
}

void write_gguf_config(const HfConfig& c, const std::string& where, GgufStart& to) {
  const std::string name = gguf_architecture(c.family), a = name + ".";
  if (name.empty()) throw FormatError(where + ": a model of " + c.family + " cannot be written as GGUF here");
  const Fixed fixed(c, where);
  to.u32(a + "block_count", c.model.layers);
  to.u32(a + "context_length", gguf_context(c));
  to.u32(a + "embedding_length", c.model.width);
  if (const auto* l = c.model.architecture.as<nn::Llama>()) {
    nn::Llama whole = *l;
    if (whole.mlp_width == 0) {
      nn::ModelConfig m = c.model;
      m.architecture.complete(m);
      whole = *m.architecture.as<nn::Llama>();
    }
    check_llama(c, whole, fixed);
    put_llama(c, whole, a, to);
  } else {
    const auto& g = *c.model.architecture.as<nn::Gpt>();
    fixed.must(g.activation == "gelu_tanh", "activation " + g.activation);
    put_gpt2(c.model, g, a, to);
  }
}

std::vector<float> gguf_rope_divisors(const HfConfig& c) {
  const auto* l = c.model.architecture.as<nn::Llama>();
  if (l == nullptr || l->scaling.type != "llama3") return {};
  const std::int64_t d = width_of_head(c.model, *l);
  const std::vector<double> plain = nn::RopeScaling{}.frequencies(d, l->theta, c.model.context),
                            scaled = l->scaling.frequencies(d, l->theta, c.model.context);
  std::vector<float> divisors;
  for (std::size_t i = 0; i < plain.size(); ++i) divisors.push_back(static_cast<float>(plain[i] / scaled[i]));
  return divisors;
}

}  // namespace tg::io
