// Options that specify the model of a tool: the sizes of ModelConfig, and the settings of every architecture.
#pragma once

#include <algorithm>

#include <tilegrad/nn/models/architecture.h>
#include <tilegrad/nn/models/model_config.h>
#include "tools/args.h"

namespace tg {

struct ModelOptions {
  nn::ModelConfig model;  // architecture and initializer are set by take_model(); vocabulary is not an option
  std::string architecture = "gpt", initializer = "gpt2";
  std::vector<nn::Architecture> architectures = nn::architectures();  // each with its own settings
};

// An option, and the architectures that have it. If the list is empty, all models have it.
struct ModelOption {
  nn::Setting setting;
  std::vector<std::string> of = {};

  std::string name() const {  // key_heads → key-heads
    std::string s = setting.name;
    std::replace(s.begin(), s.end(), '_', '-');
    return s;
  }
  bool belongs_to(const std::string& architecture) const {
    return of.empty() || std::find(of.begin(), of.end(), architecture) != of.end();
  }
};

// All model options, in the order of --help. A setting that several architectures share is a single option.
// It sets the value of the first of these architectures.
inline std::vector<ModelOption> model_options(ModelOptions& o) {
  std::vector<ModelOption> all;
  const auto named = [&](const std::string& name) {
    return std::find_if(all.begin(), all.end(), [&](const ModelOption& m) { return m.setting.name == name; });
  };
  for (const nn::Setting& s : settings_of(o.model))
    if (s.help) all.push_back({s});
  for (nn::Architecture& a : o.architectures)
    for (const nn::Setting& s : a.settings()) {
      if (!s.help) continue;
      if (const auto known = named(s.name); known != all.end()) {
        known->of.push_back(a.name());
        continue;
      }
      auto at = named(s.after);
      if (at != all.end()) ++at;
      while (at != all.end() && at->setting.after == s.after) ++at;
      all.insert(at, {s, {a.name()}});
    }
  return all;
}

// Declares the options. `whose` is prepended to each help text, for tools with other kinds of options.
inline void declare_model_options(Args& args, ModelOptions& o, const std::string& whose = "") {
  std::vector<std::string> names;
  for (const nn::Architecture& a : o.architectures) names.push_back(a.name());
  args.option("architecture", "NAME", whose + "architecture of the model", o.architecture,
              {.choices = names});
  for (const ModelOption& option : model_options(o)) {
    std::string help = option.setting.help;
    for (std::size_t i = option.of.size(); i-- > 0;)
      help = option.of[i] + (i + 1 == option.of.size() ? ": " : ", ") + help;
    help = whose + help;
    const ArgLimits limits{
        .min = option.setting.min, .max = option.setting.max, .shown = option.setting.shown};
    if (std::int64_t* const* n = std::get_if<std::int64_t*>(&option.setting.value))
      args.option(option.name(), "N", help, **n, limits);
    else if (double* const* x = std::get_if<double*>(&option.setting.value))
      args.option(option.name(), "X", help, **x, limits);
    else if (bool* const* on = std::get_if<bool*>(&option.setting.value))
      args.flag(option.name(), help, **on);
    else
      args.option(option.name(), "NAME", help, *std::get<std::string*>(option.setting.value));
  }
  args.option(
      "init", "NAME",
      whose +
          "initialization of weights: gpt2 is N(0, init-std²), pytorch uses the defaults of PyTorch's layers",
      o.initializer, {.choices = {"gpt2", "pytorch"}});
  args.option("init-std", "X",
              whose + "standard deviation of initial weights, with --init gpt2; GPT-2 uses 0.02 at width 768",
              o.model.std, {.min = 1e-6, .max = 10, .shown = "0.02·√(768/width)"});
  args.option("dropout", "P",
              whose + "dropout probability of embeddings, attention weights and block outputs",
              o.model.dropout, {.min = 0, .max = 0.99});
}

inline std::vector<std::string> names_of_model_options(ModelOptions& o) {
  std::vector<std::string> names = {"architecture", "init", "init-std", "dropout", "vocabulary"};
  for (const ModelOption& option : model_options(o)) names.push_back(option.name());
  return names;
}

// Returns a message about the first option on the command line that --model determines, or "" if there is
// none. `free`: model options that may be given with --model.
inline std::string not_with_model(const Args& args, ModelOptions& o,
                                  const std::vector<std::string>& free = {}) {
  std::vector<std::string> names = names_of_model_options(o);
  names.insert(names.end(), {"tokenizer", "task", "digits"});
  for (const std::string& name : names)
    if (args.given(name) && std::ranges::find(free, name) == free.end())
      return "--" + name + " cannot be used with --model: the model determines it";
  return {};
}

// Completes o.model from the other options. Returns a message if options are wrong, for example if the
// architecture does not have an option or if sizes do not match. Otherwise returns "".
inline std::string take_model(const Args& args, ModelOptions& o) {
  const std::vector<ModelOption> options = model_options(o);
  for (const ModelOption& option : options)
    if (args.given(option.name()) && !option.belongs_to(o.architecture))
      return "--" + option.name() +
             (option.of.size() == 1
                  ? " requires --architecture " + option.of[0] + ", not of " + o.architecture
                  : " is not an option of --architecture " + o.architecture);
  if (args.given("init-std") && o.initializer != "gpt2") return "--init-std requires --init gpt2";
  nn::ModelConfig& m = o.model;
  const auto chosen = std::find_if(o.architectures.begin(), o.architectures.end(),
                                   [&](const nn::Architecture& a) { return a.name() == o.architecture; });
  for (nn::Setting& s : chosen->settings())
    for (const ModelOption& option : options)
      if (option.setting.name == s.name)
        std::visit([&](auto* to) { *to = *std::get<decltype(to)>(option.setting.value); }, s.value);
  m.architecture = *chosen;
  m.initializer = o.initializer == "gpt2" ? nn::Initializer::gpt2 : nn::Initializer::pytorch;
  if (m.width % m.heads != 0)
    return "--width " + std::to_string(m.width) + " is not divisible by --heads " + std::to_string(m.heads);
  nn::ModelConfig c = m;
  c.vocabulary = 1;  // placeholder: the size is not known yet
  try {
    c.check();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

}  // namespace tg
