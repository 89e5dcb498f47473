// The GPT-2 architecture with nanoGPT's parameter names: learned positions, LayerNorm, multi-head attention,
// GELU MLP.
#pragma once

#include <tilegrad/nn/layers/attention.h>
#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/nn/models/model_config.h>
#include <tilegrad/nn/models/model_parts.h>

namespace tg::nn {

// The settings of GPT models.
struct Gpt {
  // See Architecture.
  static constexpr const char *name = "gpt", *title = "GPT";
  std::string activation = "gelu";  // of the MLPs (activation_named); "gelu_tanh" in GPT-2's weights
  std::int64_t mlp_width = 0;       // hidden size of the MLPs; 0: 4·width
  double eps = 1e-5;                // of the norms

  // Calls field(name, member, setting) for each setting; see settings_of.
  void fields(auto&& field) {
    field("activation", activation, Setting{.absent = "gelu"});
    field("mlp_width", mlp_width, Setting{.absent = "0"});
    field("eps", eps, Setting{.absent = "1e-05"});
  }
  // Throws ShapeError for invalid sizes and Error for other invalid settings.
  void check(const ModelConfig& c) const {
    check_divisible(c);
    activation_named(activation);
    if (mlp_width != 0) check_size(mlp_width, "width of the MLP");
    check_options("model", {{"eps", eps, Range::at_least(0)}});
  }
  // Creates the layers of a model on `at`.
  ModelParts make(const Path& at, const ModelConfig& c) const {
    const Path root = at / "transformer";
    const Embedding tokens(root / "wte", c.vocabulary, c.width, c.embedding_init());
    ModelParts parts{.name = root.name(), .context = c.context, .tokens = tokens};
    parts.positions = PositionEmbedding(root / "wpe", c.context, c.width, c.embedding_init());
    parts.dropout = c.dropout;
    for (int i = 0; i < c.layers; ++i) parts.blocks.push_back(block(root / "h" / i, c));
    parts.norm = LayerNorm(root / "ln_f", c.width, c.bias, eps);
    parts.head = c.head(at / "lm_head", tokens);
    return parts;
  }

 private:
  Layer block(const Path& at, const ModelConfig& c) const {
    const Init init = c.linear_init(), last = c.residual_init();
    const Branch attention{
        LayerNorm(at / "ln_1", c.width, c.bias, eps),
        SelfAttention(at / "attn", c.width, c.heads,
                      {.bias = c.bias, .dropout = c.dropout, .init = init, .output_init = last})};
    const Branch mlp{LayerNorm(at / "ln_2", c.width, c.bias, eps),
                     Mlp(at / "mlp", c.width,
                         {.inner = mlp_width,
                          .activation = activation_named(activation),
                          .bias = c.bias,
                          .init = init,
                          .output_init = last})};
    return Block(at, {attention, mlp}, c.dropout);
  }
};

}  // namespace tg::nn
