// ModelConfig: the description of a model. It contains the settings that all architectures have. An
// Architecture contains the other settings.
#pragma once

#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/nn/models/architecture.h>

namespace tg::nn {

// How weights are initialized.
enum class Initializer {
  gpt2,     // N(0, std); layers that add to the residual stream N(0, std/√(2·layers))
  pytorch,  // as in torch.nn: Linear uniform in ±1/√inputs, Embedding N(0, 1)
};

// The configuration of a language model.
struct ModelConfig {
  // Gpt by default; or Llama{.key_heads = 2}, DeepSeek{…}, or a custom one.
  Architecture architecture = {};
  std::int64_t vocabulary = 0, context = 64;        // number of tokens; maximum sequence length
  std::int64_t layers = 4, heads = 4, width = 128;  // blocks; attention heads; channels
  double dropout = 0;     // of embeddings, attention weights and branch results, in training
  bool bias = false;      // in Linear and LayerNorm
  bool tied_head = true;  // the head uses the token embedding's weight
  double std = 0.02;      // of initial weights; GPT-2's, for width 768
  Initializer initializer = Initializer::gpt2;  // distribution of initial weights

  // Throws ShapeError or Error that names an invalid setting.
  void check() const;
  // Returns a summary: "GPT: 4 layers, 4 heads, width 128, context 64".
  std::string text() const;
  // Returns the number of elements in all parameters, without creating any.
  std::int64_t parameters() const;
  // Calls `each` for every parameter that the model would have, in order of creation, without creating any.
  void each_parameter(const Params::Each& each) const;
  // Returns the settings that change parameters or results: first the settings of this struct, then the
  // architecture's settings. They point into this object.
  std::vector<Setting> settings();

  // For architectures: returns the initial values of linear layers.
  Init linear_init() const;
  // For architectures: returns the initial values of linear layers whose result is added to the residual
  // stream.
  Init residual_init() const;
  // For architectures: returns the initial values of embeddings.
  Init embedding_init() const;
  // For architectures: returns the head, which shares the embedding table if tied_head.
  Layer head(const Path& at, const Embedding& tokens) const;

  // Calls field(name, member, setting) for each setting here; see settings_of.
  void fields(auto&& field) {
    field("vocabulary", vocabulary);
    field("layers", layers, Setting{.help = "blocks", .min = 1, .max = 256});
    field("heads", heads, Setting{.help = "attention heads; must divide the width", .min = 1, .max = 4096});
    field("width", width, Setting{.help = "channels", .min = 1, .max = 16384});
    field("context", context,
          Setting{.help = "tokens in the context; with train --task add by default the length of a sum",
                  .min = 1,
                  .max = 65536});
    field("bias", bias);
    field("tied_head", tied_head);
  }
};

// Throws ShapeError that names `what` unless 0 < n < 2^31, so that parameter counts do not overflow.
void check_size(std::int64_t n, const char* what);
// For architectures that divide the width among heads: throws ShapeError unless the number of heads divides
// it.
void check_divisible(const ModelConfig& c);

}  // namespace tg::nn
