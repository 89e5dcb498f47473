#include "io/interop/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numbers>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include "io/interop/gguf_names.h"
#include "io/interop/json_object.h"

namespace tg::io {

namespace {

using nn::ModelConfig;

// YaRN's growth of the scores with the factor, m(x).
double growth(double factor, double x) {
  return factor <= 1 ? 1 : 0.1 * x * std::log(factor) + 1;
}

bool is_near(double a, double b) {
  return std::abs(a - b) <= 1e-6 * std::max(std::abs(a), std::abs(b));
}

// m⁻¹ of the square root of what the scale of DeepSeek's scores is more than 1/√width.
double mscale_of(double score_scale, double factor) {
  return factor <= 1 ? 0 : (std::sqrt(score_scale) - 1) / (0.1 * std::log(factor));
}

// Numbers of which some layers have one kind: their windows, and whether they turn.
std::int64_t of_layer(const std::vector<std::int64_t>& list, std::int64_t layer, std::int64_t usual) {
  return list.empty() ? usual : list[static_cast<std::size_t>(layer) % list.size()];
}

// Where llama.cpp has a window if a file does not say so: in all but every n-th layer; 0: nowhere.
std::int64_t usual_pattern(const std::string& architecture) {
  return architecture == "gemma2" ? 2 : architecture == "gemma3" ? 6 : 0;
}

// ---- Writing

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
    const std::int64_t layers = config.model.layers, usual = usual_pattern(architecture);
    std::int64_t window = 0;
    std::vector<bool> is_local;
    bool is_usual = true, is_everywhere = true;
    for (std::int64_t i = 0; i < layers; ++i) {
      const std::int64_t w = of_layer(l.windows, i, 0);
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
      if ((of_layer(l.rotated, i, 1) != 0) != (config.family != "smollm3" || (i + 1) % 4 != 0))
        refuse("rotary positions in other layers than usual");
    const bool has_pairs =
        config.family == "llama" || config.family == "mistral" || config.family == "smollm3";
    if ((l.scaling.type == "llama3" || (l.scaling.type == "longrope" && !is_phi)) && !has_pairs)
      refuse("rotary positions of type " + l.scaling.type);
    if (l.scaling.type == "longrope" && !is_phi &&
        (l.scaling.magnitude != 1 || l.scaling.short_factors != l.scaling.long_factors))
      refuse("rotary positions of type longrope");
    write_scaling(l.scaling, growth(l.scaling.factor, 1));
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
    write_scaling(d.scaling, mscale != 0 ? 1 : growth(d.scaling.factor, 1));
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

// ---- Reading

// Members of a config.json from the keys of a file.
struct ConfigReader {
  const Gguf& file;
  std::string architecture = file.string("general.architecture");
  std::map<std::string, std::string> members = {};

  std::string key(const char* name) const { return architecture + "." + name; }
  bool has(const char* name) const { return file.has(key(name)); }
  std::int64_t whole(const char* name) const {
    // A number for each layer, which must be the same.
    if (!file.is_array(key(name))) return file.integer(key(name));
    const std::vector<std::int64_t> all = file.integers(key(name));
    if (all.empty() || std::any_of(all.begin(), all.end(), [&](std::int64_t x) { return x != all[0]; }))
      file.refuse(key(name), "the same number for all layers");
    return all[0];
  }
  double real(const char* name) const { return file.number(key(name)); }
  void set(const char* member, const std::string& json) { members[member] = json; }
  void set(const char* member, std::int64_t value) { members[member] = std::to_string(value); }
  void set_real(const char* member, double value) { members[member] = json_real(value); }
  void set_true(const char* member, bool value) { members[member] = value ? "true" : "false"; }
  bool has_tensor(const char* name) const { return file.tensor(name).has_value(); }

  // f32 numbers that were made from decimal ones are these again: 1e-05, not 9.999999747378752e-06.
  double shortest(const char* name) const {
    const double x = real(name);
    return std::stod(json_number(static_cast<float>(x)));
  }

  std::int64_t vocabulary() const {
    const auto embedding = file.tensor("token_embd.weight");
    if (!embedding || embedding->shape.size() != 2)
      throw FormatError(file.where() + ": has no tensor token_embd.weight of two dimensions");
    if (has("vocab_size") && whole("vocab_size") != embedding->shape[0])
      file.refuse(key("vocab_size"), std::to_string(embedding->shape[0]) + ", the rows of token_embd.weight");
    return embedding->shape[0];
  }

  std::string factors(const char* tensor) const {
    const auto t = file.tensor(tensor);
    if (!t || t->type != GgufType::f32)
      throw FormatError(file.where() + ": has no tensor " + tensor + " of F32");
    std::string text;
    for (std::size_t i = 0; i < t->bytes.size(); i += sizeof(float)) {
      float x;
      std::memcpy(&x, t->bytes.data() + i, sizeof x);
      if (!(x > 0 && std::isfinite(x)))
        throw FormatError(file.where() + ": " + tensor + " has a number that is not positive");
      text += (text.empty() ? "" : ", ") + json_real(static_cast<double>(x));
    }
    return "[" + text + "]";
  }

  // Members of rope_parameters.
  std::string scaling() const {
    const auto real_member = [](const char* name, double x) {
      return ", " + json_string(name) + ": " + json_real(x);
    };
    const std::string type = file.string(key("rope.scaling.type"), "none");
    const std::int64_t context = whole("context_length");
    if (has_tensor("rope_factors_long.weight")) {
      const std::int64_t first = whole("rope.scaling.original_context_length");
      return "\"rope_type\": \"longrope\", \"original_max_position_embeddings\": " + std::to_string(first) +
             ", \"short_factor\": " + factors("rope_factors_short.weight") +
             ", \"long_factor\": " + factors("rope_factors_long.weight") +
             real_member("factor", static_cast<double>(context) /
                                       static_cast<double>(std::max<std::int64_t>(1, first))) +
             real_member("attention_factor", file.number(key("rope.scaling.attn_factor"), 1));
    }
    if (has_tensor("rope_freqs.weight")) {
      const std::string list = factors("rope_freqs.weight");
      return "\"rope_type\": \"longrope\", \"original_max_position_embeddings\": " + std::to_string(context) +
             ", \"short_factor\": " + list + ", \"long_factor\": " + list +
             ", \"factor\": 1.0, \"attention_factor\": 1.0";
    }
    if (type == "none") return "\"rope_type\": \"default\"";
    if (type == "linear")
      return "\"rope_type\": \"linear\"" + real_member("factor", shortest("rope.scaling.factor"));
    if (type != "yarn") file.refuse(key("rope.scaling.type"), "none, linear or yarn");
    const double factor = shortest("rope.scaling.factor");
    const double mscale = 10 * file.number(key("rope.scaling.yarn_log_multiplier"), 0);
    const double usual = mscale != 0 ? 1 : growth(factor, 1);
    std::string text = "\"rope_type\": \"yarn\"" + real_member("factor", factor) +
                       ", \"original_max_position_embeddings\": " +
                       std::to_string(whole("rope.scaling.original_context_length"));
    if (has("rope.scaling.yarn_beta_fast"))
      text += real_member("beta_fast", shortest("rope.scaling.yarn_beta_fast"));
    if (has("rope.scaling.yarn_beta_slow"))
      text += real_member("beta_slow", shortest("rope.scaling.yarn_beta_slow"));
    text += real_member("attention_factor", usual * file.number(key("rope.scaling.attn_factor"), 1));
    if (mscale != 0) text += real_member("mscale_all_dim", mscale);
    return text;
  }

  double theta() const { return has("rope.freq_base") ? shortest("rope.freq_base") : 10000; }

  void read_gpt() {
    set("vocab_size", vocabulary()), set("n_positions", whole("context_length"));
    set("n_embd", whole("embedding_length")), set("n_layer", whole("block_count"));
    set("n_head", whole("attention.head_count")), set("n_inner", whole("feed_forward_length"));
    set_real("layer_norm_epsilon", shortest("attention.layer_norm_epsilon"));
    set("activation_function", "\"gelu_new\"");
  }

  void read_sizes() {
    set("vocab_size", vocabulary()), set("max_position_embeddings", whole("context_length"));
    set("hidden_size", whole("embedding_length")), set("num_hidden_layers", whole("block_count"));
    set("num_attention_heads", whole("attention.head_count"));
    set("intermediate_size", whole("feed_forward_length"));
    set_real("rms_norm_eps", shortest("attention.layer_norm_rms_epsilon"));
    set("rope_parameters", "{" + scaling() + ", \"rope_theta\": " + json_real(theta()) + "}");
  }

  void read_windows() {
    const std::int64_t window = has("attention.sliding_window") ? whole("attention.sliding_window") : 0;
    const std::int64_t layers = whole("block_count");
    set("sliding_window", window > 0 ? std::to_string(window) : "null");
    set_true("use_sliding_window", window > 0);
    std::int64_t period = usual_pattern(architecture);
    std::vector<std::int64_t> is_local;
    if (has("attention.sliding_window_pattern")) {
      if (file.is_array(key("attention.sliding_window_pattern")))
        is_local = file.integers(key("attention.sliding_window_pattern"));
      else
        period = file.integer(key("attention.sliding_window_pattern"));
    }
    if (period < 0 || layers < 0 || layers > 10000)
      return;  // parse_hf_config() refuses such a number of layers
    std::string types;
    for (std::int64_t i = 0; i < layers; ++i) {
      const bool here = window > 0 && (is_local.empty() ? period == 0 || (i + 1) % period != 0
                                                        : of_layer(is_local, i, 1) != 0);
      types += (types.empty() ? "\"" : ", \"") + std::string(here ? "sliding" : "full") + "_attention\"";
    }
    if (window > 0) set("layer_types", "[" + types + "]");
  }

  void read_llama() {
    read_sizes();
    const std::int64_t heads = whole("attention.head_count"), width = whole("embedding_length");
    if (heads < 1) file.refuse(key("attention.head_count"), "a positive number");
    const std::int64_t d = has("attention.key_length") ? whole("attention.key_length") : width / heads;
    set("num_key_value_heads", has("attention.head_count_kv") ? whole("attention.head_count_kv") : heads);
    set("head_dim", d);
    if (has("attention.value_length") && whole("attention.value_length") != d)
      file.refuse(key("attention.value_length"), std::to_string(d) + ", as that of keys");
    set("hidden_act", "\"silu\"");
    set_true("attention_bias", has_tensor("blk.0.attn_q.bias") && architecture != "qwen2");
    set_true("mlp_bias", has_tensor("blk.0.ffn_up.bias"));
    if (has("rope.dimension_count") && d > 0 && whole("rope.dimension_count") != d) {
      if (architecture != "phi3") file.refuse(key("rope.dimension_count"), std::to_string(d));
      set_real("partial_rotary_factor", share(whole("rope.dimension_count"), d));
    }
    read_windows();
    if (architecture == "phi3") members.erase("layer_types");
    if (architecture == "phi3")
      set("original_max_position_embeddings", whole("rope.scaling.original_context_length"));
    if (architecture == "smollm3") set("no_rope_layer_interval", 4);
    if (architecture == "gemma2" || architecture == "gemma3") read_gemma(d, width / heads);
  }

  // As a config.json says it, whose reader takes whole numbers.
  static double share(std::int64_t part, std::int64_t whole) {
    double x = static_cast<double>(part) / static_cast<double>(whole);
    while (static_cast<double>(whole) * x < static_cast<double>(part)) x = std::nextafter(x, 1);
    return x;
  }

  void read_gemma(std::int64_t d, std::int64_t width_of_head) {
    const bool is_largest = whole("block_count") == (architecture == "gemma2" ? 46 : 62);
    set("query_pre_attn_scalar", is_largest ? width_of_head : d);
    set("hidden_activation", "\"gelu_pytorch_tanh\"");
    members.erase("hidden_act");
    const auto cap = [&](const char* member, const char* name, const char* usual) {
      set(member, has(name) ? json_real(shortest(name)) : usual);
    };
    const bool is_second = architecture == "gemma2";
    cap("attn_logit_softcapping", "attn_logit_softcapping", is_second ? "50.0" : "null");
    cap("final_logit_softcapping", "final_logit_softcapping", is_second ? "30.0" : "null");
    if (!has("attention.sliding_window")) {
      set("sliding_window", is_second ? 4096 : whole("context_length"));
      members.erase("layer_types");
      if (!is_second) set("sliding_window_pattern", 1);
    }
    if (is_second) return;
    const double local = has("rope.freq_base_swa") ? shortest("rope.freq_base_swa") : 10000;
    set("rope_parameters", "{\"full_attention\": {" + scaling() + ", \"rope_theta\": " + json_real(theta()) +
                               "}, \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": " +
                               json_real(local) + "}}");
  }

  void read_deepseek() {
    read_sizes();
    const std::int64_t rotary = whole("rope.dimension_count");
    set("num_key_value_heads", whole("attention.head_count"));
    set("kv_lora_rank", whole("attention.kv_lora_rank"));
    const std::int64_t queries = has("attention.q_lora_rank") ? whole("attention.q_lora_rank") : 0;
    set("q_lora_rank", queries != 0 ? std::to_string(queries) : "null");
    set("qk_rope_head_dim", rotary);
    set("qk_nope_head_dim", whole("attention.key_length_mla") - rotary);
    set("v_head_dim", whole("attention.value_length_mla"));
    set("hidden_act", "\"silu\"");
    set("first_k_dense_replace", whole("leading_dense_block_count"));
  }

  // By architecture; models with windows are Mistral's.
  std::string family() const {
    if (architecture == "gemma3") return "gemma3_text";
    if (architecture == "deepseek2") return "deepseek_v3";
    if (architecture == "llama" && has("attention.sliding_window") && whole("attention.sliding_window") > 0)
      return "mistral";
    for (const char* same : {"gpt2", "llama", "qwen2", "qwen3", "smollm3", "olmo2", "phi3", "gemma2"})
      if (architecture == same) return same;
    file.refuse("general.architecture",
                "gpt2, llama, qwen2, qwen3, smollm3, olmo2, phi3, gemma2, gemma3 or deepseek2");
  }

  void read_ids() {
    const auto id = [&](const char* name) { return "tokenizer.ggml." + std::string(name) + "_token_id"; };
    for (const auto& [name, member] : {std::pair{"bos", "bos_token_id"}, {"padding", "pad_token_id"}})
      set(member, file.has(id(name)) ? std::to_string(file.integer(id(name))) : "null");
    std::string ends;
    for (const char* name : {"eos", "eot", "eom"})
      if (file.has(id(name))) ends += (ends.empty() ? "" : ", ") + std::to_string(file.integer(id(name)));
    set("eos_token_id", "[" + ends + "]");
  }
};

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

HfConfig read_gguf_config(const Gguf& file) {
  if (file.has("split.count") && file.integer("split.count") > 1)
    file.refuse("split.count", "1: parts of a model cannot be read, join them first");
  ConfigReader reader{file};
  const std::string family = reader.family();
  for (const char* experts : {"expert_count", "expert_used_count"})
    if (reader.has(experts) && reader.whole(experts) > 0 && family != "deepseek_v3")
      file.refuse(reader.key(experts), "0: mixture-of-experts layers are not supported");
  if (family == "gpt2")
    reader.read_gpt();
  else if (family == "deepseek_v3")
    reader.read_deepseek();
  else
    reader.read_llama();
  reader.set("model_type", json_string(family));
  reader.set_true("tie_word_embeddings", !reader.has_tensor("output.weight"));
  reader.read_ids();
  return parse_hf_config(json_object_text(reader.members), file.where());
}

}  // namespace tg::io
