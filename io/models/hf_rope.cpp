#include "io/models/hf_config.h"

#include <cmath>

#include <tilegrad/io/files/json.h>

namespace tg::io {

namespace {

double yarn_magnitude(const JsonObject& rope, double factor) {
  if (rope.is_set("attention_factor")) return rope.number("attention_factor", 1);
  const double mscale = rope.number("mscale", 0), all = rope.number("mscale_all_dim", 0);
  return mscale != 0 && all != 0 ? yarn_growth(factor, mscale) / yarn_growth(factor, all)
                                 : yarn_growth(factor, 1);
}

double number_or(const JsonObject& rope, const char* key, double usual) {
  const double x = rope.number(key, usual);
  return x == 0 ? usual : x;
}

// The magnitude of LongRoPE: √(1 + ln factor / ln C).
double longrope_magnitude(const JsonObject& rope, double factor, double first_context) {
  const double usual = factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(first_context));
  return rope.number("attention_factor", usual);
}

double share_of(const JsonObject& json, const HfUsualRope& usual, double otherwise) {
  const char* key = "partial_rotary_factor";
  const double share = json.number(key, otherwise);
  if (!usual.is_phi3 && share != 1) json.refuse(key, "1");
  if (!(share > 0 && share <= 1)) json.refuse(key, "a share of a head, more than 0 and at most 1");
  return share;
}

// Returns the current name of the type.
std::string type_of(const JsonObject& rope, const HfUsualRope& usual) {
  const char* key = rope.is_set("rope_type") ? "rope_type" : "type";
  const std::string type = rope.string(key, "default");
  if (usual.is_phi3) {
    if (type == "su" || type == "yarn" || type == "longrope") return "longrope";
    if (type != "default") rope.refuse(key, "default or longrope, or su or yarn as its earlier names");
  } else if (type != "default" && type != "dynamic" && type != "linear" && type != "llama3" &&
             type != "yarn" && type != "longrope") {
    rope.refuse(key, "default, dynamic, linear, llama3, yarn or longrope");
  }
  return type;
}

// Returns the scaling of frequencies as members of an object.
std::string scaling_members(const HfRope& rope) {
  const nn::RopeScaling& s = rope.scaling;
  std::string text = "\"rope_type\": " + json_string(s.is_none() ? "default" : s.type);
  const auto add = [&](const char* key, const auto& value) {
    text += ", " + json_string(key) + ": " + json_of(value);
  };
  if (!s.is_none()) add("factor", s.factor);
  if (s.type == "llama3" || s.type == "yarn" || s.type == "longrope")
    text += ", \"original_max_position_embeddings\": " + json_number(s.first_context);
  if (s.type == "llama3") add("low_freq_factor", s.low_frequency), add("high_freq_factor", s.high_frequency);
  if (s.type == "yarn") {
    add("beta_fast", s.beta_fast), add("beta_slow", s.beta_slow), add("truncate", s.whole_pairs);
    // score_scale = yarn_growth(factor, mscale_all_dim)²
    if (rope.score_scale != 1 && s.factor > 1)
      add("mscale_all_dim", (std::sqrt(rope.score_scale) - 1) / (0.1 * std::log(s.factor)));
  }
  if (s.type == "longrope") add("short_factor", s.short_factors), add("long_factor", s.long_factors);
  if (s.type == "yarn" || s.type == "longrope") add("attention_factor", s.magnitude);
  return text;
}

}  // namespace

double hf_share(std::int64_t part, std::int64_t whole) {
  const auto all = static_cast<double>(whole), width = static_cast<double>(part);
  double share = width / all;
  while (all * share < width) share = std::nextafter(share, 1);
  return share;
}

double yarn_growth(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

HfRope hf_rope(const JsonObject& config, const HfUsualRope& usual) {
  HfUsualRope outer = usual;  // values of config.json outside rope_parameters
  outer.theta = config.number("rope_theta", usual.theta);
  const double share = share_of(config, usual, 1);
  const char* key = config.is_set("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!config.is_set(key)) return {.theta = outer.theta, .share = share};
  return hf_rope_of(config.object(key), config, outer);
}

HfRope hf_rope_of(const JsonObject& rope, const JsonObject& config, const HfUsualRope& usual) {
  for (const char* part : {"full_attention", "sliding_attention"})
    if (rope.is_set(part)) rope.refuse(part, "the same rotary positions in all layers");
  HfRope r{.theta = rope.number("rope_theta", usual.theta),
           .share = share_of(rope, usual, share_of(config, usual, 1))};
  const std::string type = type_of(rope, usual);
  // "dynamic" changes theta only for sequences longer than max_position_embeddings, the model's context.
  if (type == "default" || type == "dynamic") return r;
  nn::RopeScaling& s = r.scaling;
  s.type = type;
  const char* first = "original_max_position_embeddings";  // the key of config.json has precedence
  s.first_context = config.number(first, usual.is_phi3 ? 4096 : rope.number(first, usual.context));
  if (!rope.is_set("factor") && type != "yarn" && type != "longrope") rope.refuse("factor", "a number");
  s.factor = rope.number("factor", usual.context / s.first_context);
  if (type == "llama3") {
    for (const char* needed : {"low_freq_factor", "high_freq_factor"})
      if (!rope.is_set(needed)) rope.refuse(needed, "a number");
    s.low_frequency = rope.number("low_freq_factor", 1),
    s.high_frequency = rope.number("high_freq_factor", 4);
  }
  if (type == "yarn") {
    s.beta_fast = number_or(rope, "beta_fast", 32), s.beta_slow = number_or(rope, "beta_slow", 1);
    s.whole_pairs = rope.boolean("truncate", true);
    s.magnitude = yarn_magnitude(rope, s.factor);
  }
  if (type == "longrope") {
    s.short_factors = rope.numbers("short_factor"), s.long_factors = rope.numbers("long_factor");
    s.magnitude = longrope_magnitude(rope, s.factor, s.first_context);
  }
  if (const double all = rope.number("mscale_all_dim", 0); all != 0)
    r.score_scale = std::pow(yarn_growth(s.factor, all), 2);
  return r;
}

std::string hf_rope_json(const HfRope& rope) {
  std::string text = scaling_members(rope) + ", \"rope_theta\": " + json_real(rope.theta);
  if (rope.share != 1) text += ", \"partial_rotary_factor\": " + json_real(rope.share);
  return "{" + text + "}";
}

std::string hf_rope_scaling_json(const HfRope& rope) {
  return rope.scaling.is_none() ? "null" : "{" + scaling_members(rope) + "}";
}

}  // namespace tg::io
