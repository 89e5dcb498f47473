// ModelConfig: which model to make. Settings of every architecture are here, the others in the architecture.
#pragma once

#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/nn/models/architecture.h>

namespace tg::nn {

enum class Initializer {
  gpt2,     // N(0, std); layers that add to the residual stream N(0, std/√(2·layers))
  pytorch,  // torch.nn's: Linear uniform in ±1/√inputs, Embedding N(0, 1)
};

struct ModelConfig {
  Architecture architecture = {};  // Gpt; or Llama{.key_heads = 2}, DeepSeek{…}, or one of your own
  std::int64_t vocabulary = 0, context = 64;
  std::int64_t layers = 4, heads = 4, width = 128;
  double dropout = 0;
  bool bias = false;      // in Linear and LayerNorm
  bool tied_head = true;  // the head's weight is the token embedding's
  double std = 0.02;      // of initial weights; GPT-2's, at width 768
  Initializer initializer = Initializer::gpt2;

  void check() const;               // throws ShapeError or Error naming what does not fit
  std::string text() const;         // "GPT: 4 layers, 4 heads, width 128, context 64"
  std::int64_t parameters() const;  // numbers in all parameters, counted without creating any
  // Calls `each` for every parameter that the model would have, in order of creation, without creating any.
  void each_parameter(const Params::Each& each) const;
  // Settings on which parameters and results depend: those here, then the architecture's.
  std::vector<Setting> settings();

  // For architectures. Initial values of linear layers, of those whose result is added to the residual
  // stream, and of embeddings; and the head, which shares the embedding table if tied_head.
  Init linear_init() const;
  Init residual_init() const;
  Init embedding_init() const;
  Layer head(const Path& at, const Embedding& tokens) const;

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

// Throws ShapeError that names `what` unless 0 < n < 2^31, so that numbers of parameters do not overflow.
void check_size(std::int64_t n, const char* what);
// Throws ShapeError unless the heads divide the width, for architectures whose heads share it.
void check_divisible(const ModelConfig& c);

}  // namespace tg::nn
