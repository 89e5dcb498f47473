// The options that say which model a tool builds.
#pragma once

#include <tilegrad/nn/models/model.h>
#include "tools/args.h"

namespace tg {

struct ModelOptions {
  nn::ModelConfig model;  // vocabulary: not an option; architecture and initializer: by take_model
  std::string architecture = "gpt", initializer = "gpt2";
};

inline void declare_model_options(Args& args, ModelOptions& o) {
  nn::ModelConfig& m = o.model;
  args.option("model", "NAME", "architecture", o.architecture, {.choices = {"gpt", "llama", "deepseek"}});
  args.option("layers", "N", "blocks", m.layers, {.min = 1, .max = 256});
  args.option("heads", "N", "attention heads; must divide the width", m.heads, {.min = 1, .max = 4096});
  args.option("key-heads", "N", "llama: heads of keys and values, each shared by a group of heads",
              m.key_heads, {.min = 0, .max = 4096, .shown = "0: --heads"});
  args.option("latent", "N",
              "deepseek: size of the latent from which all heads' keys and values are computed", m.latent,
              {.min = 1, .max = 16384});
  args.option("query-latent", "N", "deepseek: the same for queries; 0: queries are not compressed",
              m.query_latent, {.min = 0, .max = 16384});
  args.option("rope-width", "N", "deepseek: rotary part of a query, and of the key that all heads share",
              m.rope_width, {.min = 2, .max = 16384});
  args.option("width", "N", "channels", m.width, {.min = 1, .max = 16384});
  args.option("mlp-width", "N", "llama, deepseek: channels inside the MLP", m.mlp_width,
              {.min = 0, .max = 65536, .shown = "0: 8/3 of --width"});
  args.option("theta", "X", "llama, deepseek: base of the rotary frequencies", m.theta,
              {.min = 1, .max = 1e12});
  args.option("context", "N", "tokens the model sees; train --task add: the length of a sum", m.context,
              {.min = 1, .max = 65536});
  args.option("init", "NAME", "initial weights: GPT-2's N(0, init-std²), or those of PyTorch's layers",
              o.initializer, {.choices = {"gpt2", "pytorch"}});
  args.option("init-std", "X", "standard deviation of initial weights; GPT-2 has 0.02 at width 768", m.std,
              {.min = 1e-6, .max = 10, .shown = "0.02·√(768/width)"});
  args.option("dropout", "P", "of embeddings, attention weights and block outputs", m.dropout,
              {.min = 0, .max = 0.99});
}

// Completes o.model from the other two. Returns what is wrong with its options (one that the architecture
// does not have, sizes that do not fit), or nothing.
inline std::string take_model(const Args& args, ModelOptions& o) {
  constexpr std::pair<const char*, const char*> only[] = {{"key-heads", "llama"},
                                                          {"latent", "deepseek"},
                                                          {"query-latent", "deepseek"},
                                                          {"rope-width", "deepseek"}};
  for (const auto& [option, model] : only)
    if (args.given(option) && o.architecture != model)
      return std::string("--") + option + " is one of --model " + model + ", not of " + o.architecture;
  for (const char* option : {"mlp-width", "theta"})
    if (args.given(option) && o.architecture == "gpt")
      return std::string("--") + option + " is not one of --model gpt";
  if (args.given("init-std") && o.initializer != "gpt2") return "--init-std is one of --init gpt2";
  nn::ModelConfig& m = o.model;
  m.architecture = nn::architecture_named(o.architecture);
  m.initializer = o.initializer == "gpt2" ? nn::Initializer::gpt2 : nn::Initializer::pytorch;
  if (m.width % m.heads != 0)
    return "--width " + std::to_string(m.width) + " does not divide by --heads " + std::to_string(m.heads);
  nn::ModelConfig c = m;
  c.vocabulary = 1;  // not known yet
  try {
    c.check();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

}  // namespace tg
