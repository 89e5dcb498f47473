#include "io/models/hf_config.h"

#include <algorithm>
#include <cmath>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include "core/base/messages.h"

namespace tg::io {

namespace {

using nn::ModelConfig;

nn::RopeScaling plain(const nn::RopeScaling& s) {
  nn::RopeScaling p{.type = s.type};
  if (s.is_none()) return p;
  if (s.type != "longrope") p.factor = s.factor;
  if (s.type != "linear") p.first_context = s.first_context;
  if (s.type == "llama3") p.low_frequency = s.low_frequency, p.high_frequency = s.high_frequency;
  if (s.type == "yarn") p.beta_fast = s.beta_fast, p.beta_slow = s.beta_slow, p.whole_pairs = s.whole_pairs;
  if (s.type == "longrope") p.short_factors = s.short_factors, p.long_factors = s.long_factors;
  if (s.type == "yarn" || s.type == "longrope") p.magnitude = s.magnitude;
  return p;
}

// Converts a list to one number per layer. The list has one number per layer, or a single number for all
// layers. Returns an empty list if all numbers are `usual`.
std::vector<std::int64_t> by_layer(const std::vector<std::int64_t>& list, std::int64_t layers,
                                   std::int64_t usual) {
  if (list.empty()) return {};
  std::vector<std::int64_t> all;
  for (std::size_t i = 0; i < static_cast<std::size_t>(layers); ++i) all.push_back(list[i % list.size()]);
  if (std::ranges::any_of(all, [&](std::int64_t x) { return x != all[0]; })) return all;
  all.resize(all[0] == usual ? 0 : 1);
  return all;
}

nn::Gpt plain(nn::Gpt g, ModelConfig& m) {
  if (g.mlp_width == 0) g.mlp_width = 4 * m.width;
  m.bias = true;  // missing biases are zeros
  return g;
}

nn::Llama plain(nn::Llama l, ModelConfig& m) {
  if (l.head_width == 0) l.head_width = m.width / m.heads;
  if (m.bias) l.attention_bias = l.mlp_bias = true, m.bias = false;
  if (l.attention_bias) l.qkv_bias = false;
  l.windows = by_layer(l.windows, m.layers, 0), l.rotated = by_layer(l.rotated, m.layers, 1);
  if (l.rotary_width == l.head_width) l.rotary_width = 0;
  l.scaling = plain(l.scaling);
  if (l.windows.empty() || (l.window_theta == l.theta && l.scaling.is_none())) l.window_theta = 0;
  if (l.attention_scale == 0) l.attention_scale = 1 / std::sqrt(static_cast<double>(l.head_width));
  return l;
}

nn::DeepSeek plain(nn::DeepSeek d, ModelConfig& m) {
  if (d.head_width == 0) d.head_width = m.width / m.heads;
  if (d.value_width == 0) d.value_width = d.head_width;
  d.scaling = plain(d.scaling);
  if (d.attention_scale == 0)
    d.attention_scale = 1 / std::sqrt(static_cast<double>(d.head_width + d.rope_width));
  return d;
}

// Whether two numbers are equal up to rounding errors. One of them may have been computed from the other.
bool is_same(double a, double b) {
  return std::abs(a - b) <= 1e-12 * std::max(std::abs(a), std::abs(b));
}
bool is_same(const auto& a, const auto& b) {
  return a == b;
}

// Compares two models. Returns the settings that differ, with their values in model a, such as "qk_norm
// whole". Both models are in normal form.
std::vector<std::string> differing(ModelConfig a, ModelConfig b) {
  std::vector<std::string> names;
  const Metadata values = to_metadata(a);
  const std::vector<nn::Setting> of_a = a.settings(), of_b = b.settings();
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    const nn::Setting& s = of_a[i];
    const bool same = std::visit(
        [&](const auto* x) { return is_same(*x, *std::get<std::decay_t<decltype(*x)>*>(of_b[i].value)); },
        s.value);
    if (same) continue;
    const auto value = values.find(s.name);
    names.push_back(s.name + " " + (value == values.end() ? s.absent.value_or("") : value->second));
  }
  return names;
}

}  // namespace

ModelConfig hf_plain(ModelConfig m) {
  m.architecture.complete(m);
  if (const auto* g = m.architecture.as<nn::Gpt>()) m.architecture = plain(*g, m);
  if (const auto* l = m.architecture.as<nn::Llama>()) m.architecture = plain(*l, m);
  if (const auto* d = m.architecture.as<nn::DeepSeek>()) m.architecture = plain(*d, m);
  return m;
}

HfConfig hf_config_for(const ModelConfig& model, const std::string& where, const std::string& family) {
  model.check();
  const ModelConfig form = hf_plain(model);
  // The settings that the closest family cannot represent. If it can represent all of them, the reason why
  // its reader rejects the text.
  std::vector<std::string> least;
  std::string nearest, refusal;
  for (const std::string& name : hf_written_families()) {
    if (!family.empty() && family != name) continue;
    const auto text = hf_model_text(name, form);
    if (!text) continue;
    try {
      HfConfig made = parse_hf_config(*text, name);
      const std::vector<std::string> wrong = differing(form, hf_plain(made.model));
      if (wrong.empty()) return made;
      if (nearest.empty() || wrong.size() < least.size()) least = wrong, nearest = name;
    } catch (const FormatError& e) {
      if (refusal.empty()) refusal = e.what();
    }
  }
  const std::string what = where + ": no Hugging Face class can hold this model: ";
  if (!nearest.empty()) throw FormatError(what + nearest + ", the nearest, has no " + list_text(least, ", "));
  if (!refusal.empty()) throw FormatError(what + refusal);
  throw FormatError(what + "its architecture is '" + model.architecture.name() + "'" +
                    (family.empty() ? "" : ", which is not " + family + "'s"));
}

bool is_config_of(const HfConfig& config, const ModelConfig& model) {
  const ModelConfig a = hf_plain(config.model), b = hf_plain(model);
  return a.architecture.name() == b.architecture.name() && differing(a, b).empty();
}

}  // namespace tg::io
