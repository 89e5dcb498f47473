// A model from the keys of a file, as a config.json.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include "io/interop/gguf_config.h"
#include "io/interop/gguf_windows.h"
#include "io/interop/hf_rope.h"
#include "io/interop/json_object.h"

namespace tg::io {

namespace {

// Heads of up to twice so many numbers. More would cost memory before it is known how wide heads are.
constexpr std::size_t max_factors = 512;

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
    std::optional<std::int64_t> first;
    bool is_same = true;
    file.each_integer(key(name), [&](std::int64_t x) { is_same &= x == first.value_or(x), first = x; });
    if (!first || !is_same) file.refuse(key(name), "the same number for all layers");
    return *first;
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

  // Checked before anything is made of so many.
  void check_layers() const {
    const auto most = std::min(static_cast<std::int64_t>(file.tensor_count()), JsonObject::most_items);
    if (const std::int64_t layers = whole("block_count"); layers < 1 || layers > most)
      file.refuse(key("block_count"),
                  "1 to " + std::to_string(most) +
                      (most == JsonObject::most_items ? " layers" : ", the number of tensors"));
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
    if (t->bytes.size() > max_factors * sizeof(float))
      throw FormatError(file.where() + ": " + tensor + " has " +
                        std::to_string(t->bytes.size() / sizeof(float)) + " numbers, expected at most " +
                        std::to_string(max_factors));
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
    const double usual = mscale != 0 ? 1 : yarn_growth(factor, 1);
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

  // Which layers have windows: what is behind the last layer says nothing.
  std::vector<std::int64_t> window_pattern(std::int64_t layers) const {
    std::vector<std::int64_t> is_local;
    file.each_integer(key("attention.sliding_window_pattern"), [&](std::int64_t x) {
      if (std::ssize(is_local) < layers) is_local.push_back(x);
    });
    return is_local;
  }

  void read_windows() {
    const std::int64_t window = has("attention.sliding_window") ? whole("attention.sliding_window") : 0;
    const std::int64_t layers = whole("block_count");
    set("sliding_window", window > 0 ? std::to_string(window) : "null");
    set_true("use_sliding_window", window > 0);
    std::int64_t period = usual_gguf_pattern(architecture);
    std::vector<std::int64_t> is_local;
    if (has("attention.sliding_window_pattern")) {
      if (file.is_array(key("attention.sliding_window_pattern")))
        is_local = window_pattern(layers);
      else
        period = file.integer(key("attention.sliding_window_pattern"));
    }
    if (period < 0) file.refuse(key("attention.sliding_window_pattern"), "a positive number of layers");
    std::string types;
    for (std::int64_t i = 0; i < layers; ++i) {
      const bool here = window > 0 && (is_local.empty() ? period == 0 || (i + 1) % period != 0
                                                        : of_gguf_layer(is_local, i, 1) != 0);
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
      const std::int64_t rotary = whole("rope.dimension_count");
      if (rotary < 1 || rotary > d)
        file.refuse(key("rope.dimension_count"), "1 to " + std::to_string(d) + ", the width of a head");
      set_real("partial_rotary_factor", share(rotary, d));
    }
    read_windows();
    if (architecture == "phi3") members.erase("layer_types");
    if (architecture == "phi3")
      set("original_max_position_embeddings", whole("rope.scaling.original_context_length"));
    if (architecture == "smollm3") set("no_rope_layer_interval", 4);
    if (architecture == "gemma2" || architecture == "gemma3") read_gemma(d, width / heads);
  }

  // A part of at most the whole as a config.json says it, whose reader takes whole numbers.
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

HfConfig read_gguf_config(const Gguf& file) {
  if (file.has("split.count") && file.integer("split.count") > 1)
    file.refuse("split.count", "1: parts of a model cannot be read, join them first");
  ConfigReader reader{file};
  const std::string family = reader.family();
  for (const char* experts : {"expert_count", "expert_used_count"})
    if (reader.has(experts) && reader.whole(experts) > 0 && family != "deepseek_v3")
      file.refuse(reader.key(experts), "0: mixture-of-experts layers are not supported");
  reader.check_layers();
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
