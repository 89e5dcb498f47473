// Converts the keys of a GGUF file to the config.json of a model.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include "io/files/json_object.h"
#include "io/models/gguf_metadata.h"
#include "io/models/gguf_rules.h"
#include "io/models/hf_config.h"

namespace tg::io {

namespace {

// The maximum number of divisors in a list: one for each pair of elements of a head. Longer lists are
// rejected early, because the head size is not known yet.
constexpr std::size_t max_factors = 512;

// Converts the keys of a file to members of a config.json.
struct ConfigReader : JsonMembers {
  explicit ConfigReader(const Gguf& from) : file(from) {}

  const Gguf& file;
  std::string architecture = file.string("general.architecture");
  std::set<std::string> tensors = {};  // tensors that were read and are not parameters

  std::string key(const char* name) const { return architecture + "." + name; }
  bool has(const char* name) const { return file.has(key(name)); }
  std::int64_t whole(const char* name) const {
    // Reads a key with one number, or one number per layer. The numbers must be equal.
    if (!file.is_array(key(name))) return file.integer(key(name));
    std::optional<std::int64_t> first;
    bool is_same = true;
    file.each_integer(key(name), [&](std::int64_t x) { is_same &= x == first.value_or(x), first = x; });
    if (!first || !is_same) file.refuse(key(name), "the same number for all layers");
    return *first;
  }
  double real(const char* name) const { return file.number(key(name)); }
  bool has_tensor(const char* name) const { return file.tensor(name).has_value(); }

  // Restores a decimal number that was rounded to f32: returns 1e-05, not 9.999999747378752e-06.
  double shortest(const char* name) const {
    const double x = real(name);
    return std::stod(json_number(static_cast<float>(x)));
  }

  // Checks the number of layers before anything is created for each of them.
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

  // Returns the divisors of the rotary frequencies from a tensor. Each is multiplied by `factor`.
  std::string factors(const char* tensor, double factor) {
    tensors.insert(tensor);
    const auto t = file.tensor(tensor);
    if (!t || t->type != GgufType::f32)
      throw FormatError(file.where() + ": has no tensor " + tensor + " of F32");
    if (t->bytes.size() > max_factors * sizeof(float))
      throw FormatError(file.where() + ": " + tensor + " has " +
                        std::to_string(t->bytes.size() / sizeof(float)) + " numbers, expected at most " +
                        std::to_string(max_factors));
    std::vector<double> list;
    for (std::size_t i = 0; i < t->bytes.size(); i += sizeof(float)) {
      float x;
      std::memcpy(&x, t->bytes.data() + i, sizeof x);
      if (!(x > 0 && std::isfinite(x)))
        throw FormatError(file.where() + ": " + tensor + " has a number that is not positive");
      list.push_back(factor * static_cast<double>(x));
    }
    return json_of(list);
  }

  std::int64_t first_context() const {
    return file.integer(key("rope.scaling.original_context_length"), whole("context_length"));
  }

  // Reads all keys for scaled frequencies as llama.cpp does.
  GgufRope rope() const {
    GgufRope r{.type = file.string(key("rope.scaling.type"), "linear")};
    if (r.type != "none" && r.type != "linear" && r.type != "yarn" && r.type != "longrope")
      file.refuse(key("rope.scaling.type"), "none, linear, yarn or longrope");
    const char *now = "rope.scaling.factor", *before = "rope.scale_linear";
    if (has(now) || has(before)) r.factor = shortest(has(now) ? now : before);
    if (has(now) && has(before) && real(before) != real(now))
      file.refuse(key(before), file.text(key(now)) + ", " + key(now));
    if (r.factor == 0) r.factor = 1;
    if (!(r.factor > 0)) file.refuse(key(has(now) ? now : before), "a positive number");
    r.original = static_cast<double>(first_context());
    r.attn_factor = file.number(key("rope.scaling.attn_factor"), 1);
    if (!(r.attn_factor > 0)) file.refuse(key("rope.scaling.attn_factor"), "a positive number");
    if (architecture == "deepseek2")
      r.log_multiplier = file.number(key("rope.scaling.yarn_log_multiplier"), 0);
    if (has("rope.scaling.finetuned")) file.boolean(key("rope.scaling.finetuned"));  // only informative
    return r;
  }

  // Returns beta_fast and beta_slow as members. llama.cpp ignores these keys in models of the supported
  // architectures, so they must not change a frequency.
  std::string betas(const GgufRope& r, std::int64_t d) const {
    nn::RopeScaling s{.type = "yarn", .factor = r.factor, .first_context = r.original};
    const std::vector<double> theirs = gguf_rotation(r, d, theta()).frequencies;
    std::string text;
    for (const auto& [name, member, value] :
         {std::tuple{"rope.scaling.yarn_beta_fast", "beta_fast", &s.beta_fast},
          {"rope.scaling.yarn_beta_slow", "beta_slow", &s.beta_slow}}) {
      if (!has(name)) continue;
      *value = shortest(name);
      const std::vector<double> ours = s.frequencies(d, theta(), 0);
      if (!std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(), is_same_in_gguf))
        file.refuse(key(name), std::string(value == &s.beta_fast ? "32" : "1") +
                                   ": llama.cpp does not read it in models of " + architecture);
      text += ", " + json_string(member) + ": " + json_real(*value);
    }
    return text;
  }

  // Returns the members of rope_parameters for d rotated elements per head.
  std::string scaling(std::int64_t d) {
    const auto real_member = [](const char* name, double x) {
      return ", " + json_string(name) + ": " + json_real(x);
    };
    const GgufRope r = rope();
    const std::string original = ", \"original_max_position_embeddings\": " + std::to_string(first_context());
    const bool has_two = has_tensor("rope_factors_long.weight");
    if (has_two || has_tensor("rope_freqs.weight")) {
      if (r.type == "yarn") file.refuse(key("rope.scaling.type"), "none, linear or longrope with divisors");
      const double factor = r.type == "none" ? 1 : r.factor;
      const std::string list = factors(has_two ? "rope_factors_long.weight" : "rope_freqs.weight", factor);
      const std::string first = has_two ? factors("rope_factors_short.weight", factor) : list;
      return "\"rope_type\": \"longrope\"" + original + ", \"short_factor\": " + first +
             ", \"long_factor\": " + list +
             real_member("factor", static_cast<double>(whole("context_length")) / std::max(1.0, r.original)) +
             real_member("attention_factor", r.attn_factor);
    }
    if (r.type == "longrope") file.refuse(key("rope.scaling.type"), "none, linear or yarn without divisors");
    const GgufRotation rotation = gguf_rotation(r, d, theta());
    if (r.type != "yarn" && r.attn_factor != 1)
      file.refuse(key("rope.scaling.attn_factor"), "1 without YaRN");
    std::string text = "\"rope_type\": \"default\"";
    if (r.type == "linear" && r.factor != 1)
      text = "\"rope_type\": \"linear\"" + real_member("factor", r.factor);
    if (r.type == "yarn") {
      text = "\"rope_type\": \"yarn\"" + real_member("factor", r.factor) + original + betas(r, d);
      const bool is_one = is_same_in_gguf(rotation.magnitude, 1);
      text += real_member("attention_factor", is_one ? 1 : rotation.magnitude);
    }
    const double scale = rotation.score_scale;
    if (architecture == "gemma3" && has_windows() && !is_same_in_gguf(rotation.window_magnitude, 1))
      file.refuse(key("rope.scaling.attn_factor"), "1, which layers with a window need");
    if (architecture != "deepseek2" || is_same_in_gguf(scale, 1)) return text;
    if (r.type == "none" || !(r.factor > 1))
      file.refuse(key("rope.scaling.factor"), "more than 1 where scores are scaled");
    return text + real_member("mscale_all_dim", (std::sqrt(scale) - 1) / (0.1 * std::log(r.factor)));
  }

  double theta() const { return has("rope.freq_base") ? shortest("rope.freq_base") : 10000; }

  void read_gpt() {
    set("vocab_size", vocabulary()), set("n_positions", whole("context_length"));
    set("n_embd", whole("embedding_length")), set("n_layer", whole("block_count"));
    set("n_head", whole("attention.head_count")), set("n_inner", whole("feed_forward_length"));
    if (has("attention.head_count_kv") && whole("attention.head_count_kv") != whole("attention.head_count"))
      file.refuse(key("attention.head_count_kv"),
                  file.text(key("attention.head_count")) + ", as many as heads");
    set("layer_norm_epsilon", shortest("attention.layer_norm_epsilon"));
    set("activation_function", "gelu_new");
  }

  void read_sizes() {
    set("vocab_size", vocabulary()), set("max_position_embeddings", whole("context_length"));
    set("hidden_size", whole("embedding_length")), set("num_hidden_layers", whole("block_count"));
    set("num_attention_heads", whole("attention.head_count"));
    set("intermediate_size", whole("feed_forward_length"));
    set("rms_norm_eps", shortest("attention.layer_norm_rms_epsilon"));
  }
  void set_rope(std::int64_t d) {
    set_json("rope_parameters", "{" + scaling(d) + ", \"rope_theta\": " + json_real(theta()) + "}");
  }

  bool has_windows() const {
    return has("attention.sliding_window") && whole("attention.sliding_window") > 0;
  }

  // Returns which layers have windows. Entries after the last layer are ignored.
  std::vector<std::int64_t> window_pattern(std::int64_t layers) const {
    std::vector<std::int64_t> is_local;
    file.each_integer(key("attention.sliding_window_pattern"), [&](std::int64_t x) {
      if (std::ssize(is_local) < layers) is_local.push_back(x);
    });
    return is_local;
  }

  void read_windows() {
    const std::int64_t window = has("attention.sliding_window") ? whole("attention.sliding_window")
                                : architecture == "gemma2"      ? 4096
                                                                : 0;
    if (window > 0 && architecture == "olmo2")
      file.refuse(key("attention.sliding_window"), "0: OLMo 2 has no windows");
    const std::int64_t layers = whole("block_count");
    set("sliding_window", window > 0 ? std::optional(window) : std::nullopt);
    set("use_sliding_window", window > 0);
    std::int64_t period = usual_gguf_pattern(architecture);
    std::vector<std::int64_t> is_local;
    if (has("attention.sliding_window_pattern")) {
      if (file.is_array(key("attention.sliding_window_pattern")))
        is_local = window_pattern(layers);
      else
        period = file.integer(key("attention.sliding_window_pattern"));
    }
    if (period < 0) file.refuse(key("attention.sliding_window_pattern"), "a positive number of layers");
    if (window <= 0) return;
    std::vector<std::string> types;
    for (std::int64_t i = 0; i < layers; ++i) {
      const bool here =
          is_local.empty() ? period == 0 || (i + 1) % period != 0 : of_gguf_layer(is_local, i, 1) != 0;
      types.emplace_back(here ? "sliding_attention" : "full_attention");
    }
    set("layer_types", types);
  }

  void read_llama() {
    read_sizes();
    const std::int64_t heads = whole("attention.head_count"), width = whole("embedding_length");
    if (heads < 1) file.refuse(key("attention.head_count"), "a positive number");
    const std::int64_t d = has("attention.key_length") ? whole("attention.key_length") : width / heads;
    if (d < 1 || d > 2 * static_cast<std::int64_t>(max_factors))
      file.refuse(key(has("attention.key_length") ? "attention.key_length" : "embedding_length"),
                  "heads of a width of 1 to " + std::to_string(2 * max_factors));
    set("num_key_value_heads", has("attention.head_count_kv") ? whole("attention.head_count_kv") : heads);
    set("head_dim", d);
    if (has("attention.value_length") && whole("attention.value_length") != d)
      file.refuse(key("attention.value_length"), std::to_string(d) + ", as that of keys");
    set("hidden_act", "silu");
    set("attention_bias", has_tensor("blk.0.attn_q.bias") && architecture != "qwen2");
    set("mlp_bias", has_tensor("blk.0.ffn_up.bias"));
    const std::int64_t rotary = has("rope.dimension_count") ? whole("rope.dimension_count") : d;
    if (rotary != d) {
      if (architecture != "phi3") file.refuse(key("rope.dimension_count"), std::to_string(d));
      if (rotary < 1 || rotary > d)
        file.refuse(key("rope.dimension_count"), "1 to " + std::to_string(d) + ", the width of a head");
      set("partial_rotary_factor", hf_share(rotary, d));
    }
    set_rope(rotary);
    read_windows();
    if (architecture == "phi3") members.erase("layer_types");
    if (architecture == "phi3") set("original_max_position_embeddings", first_context());
    if (architecture == "smollm3") set("no_rope_layer_interval", std::int64_t{4});
    if (architecture == "gemma2" || architecture == "gemma3") read_gemma(d, width / heads);
    // Only these architectures have separate frequencies in layers with a window.
    if (architecture != "gemma3" && has("rope.freq_base_swa") && real("rope.freq_base_swa") != theta())
      file.refuse(key("rope.freq_base_swa"), json_number(theta()) + ", that of all layers");
  }

  void read_gemma(std::int64_t d, std::int64_t width_of_head) {
    const bool is_largest = whole("block_count") == (architecture == "gemma2" ? 46 : 62);
    set("query_pre_attn_scalar", is_largest ? width_of_head : d);
    set("hidden_activation", "gelu_pytorch_tanh");
    members.erase("hidden_act");
    const auto cap = [&](const char* member, const char* name, const char* usual) {
      set_json(member, has(name) ? json_real(shortest(name)) : usual);
    };
    const bool is_second = architecture == "gemma2";
    if (is_second) cap("attn_logit_softcapping", "attn_logit_softcapping", "50.0");
    cap("final_logit_softcapping", "final_logit_softcapping", is_second ? "30.0" : "null");
    if (!is_second && !has_windows()) {
      set("sliding_window", whole("context_length")), set("sliding_window_pattern", std::int64_t{1});
      members.erase("layer_types");
    }
    if (is_second) return;
    const double local = has("rope.freq_base_swa") ? shortest("rope.freq_base_swa") : 10000;
    set_json("rope_parameters", "{\"full_attention\": " + members.at("rope_parameters") +
                                    ", \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": " +
                                    json_real(local) + "}}");
  }

  // Checks that a key, if present, has this value.
  void check_whole(const char* name, std::int64_t expected) const {
    if (has(name) && whole(name) != expected) file.refuse(key(name), std::to_string(expected));
  }

  void read_deepseek() {
    read_sizes();
    const std::int64_t rotary = whole("rope.dimension_count");
    set("num_key_value_heads", whole("attention.head_count"));
    set("kv_lora_rank", whole("attention.kv_lora_rank"));
    const std::int64_t queries = has("attention.q_lora_rank") ? whole("attention.q_lora_rank") : 0;
    set("q_lora_rank", queries != 0 ? std::optional(queries) : std::nullopt);
    if (rotary < 1 || rotary > 2 * static_cast<std::int64_t>(max_factors))
      file.refuse(key("rope.dimension_count"), "1 to " + std::to_string(2 * max_factors));
    set_rope(rotary);
    set("qk_rope_head_dim", rotary);
    set("qk_nope_head_dim", whole("attention.key_length_mla") - rotary);
    set("v_head_dim", whole("attention.value_length_mla"));
    set("hidden_act", "silu");
    set("first_k_dense_replace", whole("leading_dense_block_count"));
    const std::int64_t latent = whole("attention.kv_lora_rank");
    check_whole("attention.key_length", latent + rotary), check_whole("attention.value_length", latent);
    check_whole("attention.head_count_kv", 1);  // all heads share the latent
    check_whole("nextn_predict_layers", 0);
  }

  // Maps the architecture to a family. Models with windows are Mistral's.
  std::string family() const {
    if (architecture == "gemma3") return "gemma3_text";
    if (architecture == "deepseek2") return "deepseek_v3";
    if (architecture == "llama" && has("attention.sliding_window") && whole("attention.sliding_window") > 0)
      return "mistral";
    if (gguf_architecture_named(architecture) != nullptr) return architecture;
    file.refuse("general.architecture", gguf_architecture_names());
  }

  void read_ids() {
    const auto id = [&](const char* name) { return "tokenizer.ggml." + std::string(name) + "_token_id"; };
    for (const auto& [name, member] : {std::pair{"bos", "bos_token_id"}, {"padding", "pad_token_id"}})
      set(member, file.has(id(name)) ? std::optional(file.integer(id(name))) : std::nullopt);
    std::vector<std::int64_t> ends;
    for (const char* name : {"eos", "eot", "eom"})
      if (file.has(id(name))) ends.push_back(file.integer(id(name)));
    set("eos_token_id", ends);
  }
};

}  // namespace

HfConfig read_gguf_config(const Gguf& file, std::set<std::string>* tensors) {
  for (const auto& [key, expected] : {std::pair{"split.count", 1}, {"split.no", 0}})
    if (file.has(key) && file.integer(key) > expected)
      file.refuse(key, std::to_string(expected) + ": parts of a model cannot be read, join them first");
  if (file.string("general.type", "model") != "model") file.refuse("general.type", "model");
  ConfigReader reader(file);
  const std::string family = reader.family();
  for (const char* experts : {"expert_count", "expert_used_count"})
    if (reader.has(experts) && reader.whole(experts) > 0 && family != "deepseek_v3")
      file.refuse(reader.key(experts), "0: mixture-of-experts layers are not supported");
  reader.check_layers();
  with_format_errors(file.where(),  // invalid settings, such as position scaling
                     [&] {
                       if (family == "gpt2")
                         reader.read_gpt();
                       else if (family == "deepseek_v3")
                         reader.read_deepseek();
                       else
                         reader.read_llama();
                     });
  if (reader.has("attention.causal") && !file.boolean(reader.key("attention.causal")))
    file.refuse(reader.key("attention.causal"), "true");
  reader.set("model_type", family);
  reader.set("tie_word_embeddings", !reader.has_tensor("output.weight"));
  reader.read_ids();
  if (tensors != nullptr) *tensors = reader.tensors;
  return parse_hf_config(reader.text(), file.where());
}

void check_gguf_keys(const Gguf& file) {
  const std::string architecture = file.string("general.architecture");
  // Prefixes of keys without effect. Keys of expert layers also have no effect, because no supported model
  // has such layers.
  const auto begins = {"general.", "quantize.", "mradermacher.", "tokenizer.chat_template",
                       "tokenizer.huggingface.json"};
  // Keys for other kinds of tokenizers, and ids of tokens that never begin or end a sequence, are ignored.
  const std::string kind = file.string("tokenizer.ggml.model", "none");
  const auto is_of_tokenizer = [&](std::string_view name) {
    if (!name.starts_with("tokenizer.ggml.")) return false;
    name.remove_prefix(std::string_view("tokenizer.ggml.").size());
    const bool is_other = name == "pre" || name == (kind == "llama" ? "merges" : "scores") ||
                          (kind == "gpt2" && name == "add_space_prefix");
    return is_other || name.ends_with("_token_id") || kind == "none" || kind == "no_vocab";
  };
  const std::string_view key = file.unread_key([&](std::string_view name) {
    if (name.starts_with("general.tensor_extra.")) return false;
    for (const char* begin : begins)
      if (name.starts_with(begin)) return true;
    return name == "split.tensors.count" || name.starts_with(architecture + ".expert_") ||
           is_of_tokenizer(name);
  });
  if (!key.empty()) file.refuse(key, "no such key, which is not understood in a model of " + architecture);
}

}  // namespace tg::io
