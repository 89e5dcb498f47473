#include "io/models/adapter_source.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include "io/files/json_object.h"

namespace tg::io {

namespace {

// Keys without effect on the results of a trained adapter.
constexpr const char* without_effect[] = {
    "auto_mapping",      "base_model_name_or_path",
    "corda_config",      "ensure_weight_tying",
    "eva_config",        "inference_mode",
    "lora_ga_config",    "loftq_config",
    "megatron_core",     "peft_version",
    "qalora_group_size", "revision",
    "runtime_config",
};
// Keys that are read below.
constexpr const char* understood[] = {
    "alpha_pattern",
    "bias",
    "exclude_modules",
    "fan_in_fan_out",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "lora_dropout",
    "peft_type",
    "r",
    "rank_pattern",
    "target_modules",
    "task_type",
    "use_rslora",
};

bool is_among(const std::string& key, const auto& list) {
  return std::find(std::begin(list), std::end(list), key) != std::end(list);
}

bool is_empty_value(const std::string& json) {
  return json == "null" || json == "false" || json == "{}" || json == "[]";
}

void expect(const JsonObject& config, const std::string& key, const std::string& usual,
            std::initializer_list<const char*> allowed) {
  if (!config.is_set(key)) return;
  const std::string value = config.string(key, usual);
  if (!is_among(value, allowed)) config.refuse(key, list_text(allowed, " or "));
}

// Accepts only initial values that leave the model's weights unchanged. PiSSA, OLoRA, CorDA and others change
// them.
void check_init(const JsonObject& config) {
  const std::string key = "init_lora_weights";
  if (!config.is_set(key)) return;
  const std::string json = config.json(key);
  for (const char* allowed : {"true", "false", "\"gaussian\"", "\"orthogonal\"", "\"eva\""})
    if (json == allowed) return;
  config.refuse(key, "true, false, gaussian, orthogonal or eva, which leave the model's weights as they are");
}

// A key of rank_pattern or alpha_pattern is a regular expression. Only module names and their last parts are
// supported. ^ and $ mark a complete name.
std::string name_of_pattern(const JsonObject& config, const std::string& key, std::string pattern) {
  if (pattern.starts_with('^')) pattern.erase(0, 1);
  if (pattern.ends_with('$')) pattern.pop_back();
  const auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '-';
  };
  if (pattern.empty() || !std::ranges::all_of(pattern, is_plain))
    config.refuse(key, "names of modules, or their last parts, as keys");
  return pattern;
}

template <class T, class Value>
std::map<std::string, T> pattern_of(const JsonObject& config, const std::string& key, Value value) {
  std::map<std::string, T> all;
  if (!config.is_set(key)) return all;
  const JsonObject patterns = config.object(key);
  for (const std::string& pattern : patterns.keys()) {
    const std::string name = name_of_pattern(config, key, pattern);
    if (!all.emplace(name, value(patterns, pattern)).second) config.refuse(key, "each module once");
  }
  return all;
}

std::string text_of_alpha(double alpha) {
  return std::trunc(alpha) == alpha && std::abs(alpha) < 1e15
             ? std::to_string(static_cast<std::int64_t>(alpha))
             : json_real(alpha);
}

// Writes each item or member on a separate line.
std::string json_lines(char open, const auto& items, const auto& text_of, char close) {
  const std::string all = list_text(items, ",\n    ", text_of);
  return all.empty() ? std::string{open, close} : open + ("\n    " + all) + "\n  " + close;
}

template <class T>
std::string json_of_pattern(const std::map<std::string, T>& pattern, const auto& text) {
  const auto member = [&](const auto& m) { return json_string(m.first) + ": " + text(m.second); };
  return json_lines('{', pattern, member, '}');
}

}  // namespace

PeftConfig parse_peft_config(std::string_view text, const std::string& where) {
  const JsonObject config(text, where);
  if (config.string("peft_type") != "LORA") config.refuse("peft_type", "LORA");
  expect(config, "task_type", "CAUSAL_LM", {"CAUSAL_LM"});
  expect(config, "bias", "none", {"none"});
  for (const std::string& key : config.keys())
    if (!is_among(key, without_effect) && !is_among(key, understood) && !is_empty_value(config.json(key)))
      config.refuse(key, "none of this");
  check_init(config);
  PeftConfig result;
  nn::LoraOptions& o = result.options;
  const auto rank = [](const JsonObject& of, const std::string& key) {
    const std::int64_t r = of.integer(key, 8);
    if (r < 1 || r > std::numeric_limits<std::int32_t>::max()) of.refuse(key, "a positive integer");
    return r;
  };
  const auto number = [](const JsonObject& of, const std::string& key) { return of.number(key, 8); };
  o.rank = rank(config, "r");
  o.alpha = number(config, "lora_alpha");
  o.rank_stabilized = config.boolean("use_rslora", false);
  o.dropout = config.number("lora_dropout", 0);
  if (!(o.dropout >= 0 && o.dropout < 1)) config.refuse("lora_dropout", "a number in [0, 1)");
  o.ranks = pattern_of<std::int64_t>(config, "rank_pattern", rank);
  o.alphas = pattern_of<double>(config, "alpha_pattern", number);
  if (!config.is_set("target_modules")) config.refuse("target_modules", "names of modules");
  if (config.json("target_modules").starts_with('[')) {
    o.targets = config.strings("target_modules");
    if (o.targets.empty()) config.refuse("target_modules", "names of modules");
    std::ranges::sort(o.targets);
    for (const char* key : {"exclude_modules", "layers_to_transform", "layers_pattern"})
      result.targets_complete &= !config.is_set(key);
  } else {  // a string: the modules with tensors get an adapter
    result.targets_complete = config.string("target_modules") == "all-linear";
  }
  result.base = config.string("base_model_name_or_path", "");
  result.fan_in_fan_out = config.boolean("fan_in_fan_out", false);
  return result;
}

std::string peft_config_json(const PeftConfig& config, const std::vector<nn::LoraModule>& modules) {
  const nn::LoraOptions& o = config.options;
  std::vector<std::string> targets = o.targets;
  if (targets.empty())  // all except the head, whose name no other module has
    for (const nn::LoraModule& m : modules) targets.push_back(m.name.substr(m.name.rfind('.') + 1));
  std::ranges::sort(targets);
  targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
  return json_object_text(
      {{"alpha_pattern", json_of_pattern(o.alphas, text_of_alpha)},
       {"base_model_name_or_path", config.base.empty() ? "null" : json_string(config.base)},
       {"bias", json_string("none")},
       {"fan_in_fan_out", json_of(config.fan_in_fan_out)},
       {"inference_mode", "true"},
       {"init_lora_weights", "true"},
       {"layers_pattern", "null"},
       {"layers_to_transform", "null"},
       {"lora_alpha", text_of_alpha(o.alpha)},
       {"lora_dropout", json_real(o.dropout)},
       {"modules_to_save", "null"},
       {"peft_type", json_string("LORA")},
       {"r", std::to_string(o.rank)},
       {"rank_pattern", json_of_pattern(o.ranks, [](std::int64_t r) { return json_of(r); })},
       {"target_modules", json_lines('[', targets, json_string, ']')},
       {"task_type", json_string("CAUSAL_LM")},
       {"use_dora", "false"},
       {"use_rslora", json_of(o.rank_stabilized)}});
}

}  // namespace tg::io
