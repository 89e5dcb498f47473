// GPT-2 under nanoGPT's names: learned positions, LayerNorm, multi-head attention, GELU MLP.
#pragma once

#include <tilegrad/nn/layers/attention.h>
#include <tilegrad/nn/layers/mlp.h>
#include <tilegrad/nn/models/block.h>
#include <tilegrad/nn/models/model_config.h>

namespace tg::nn {

struct Gpt {
  static constexpr const char *name = "gpt", *title = "GPT";

  void fields(auto&&) {}

  ModelParts make(const Path& at, const ModelConfig& c) const {
    const Path root = at / "transformer";
    const Embedding tokens(root / "wte", c.vocabulary, c.width, c.embedding_init());
    ModelParts parts{.name = root.name(), .context = c.context, .tokens = tokens};
    parts.positions = PositionEmbedding(root / "wpe", c.context, c.width, c.embedding_init());
    parts.dropout = c.dropout;
    for (int i = 0; i < c.layers; ++i) parts.blocks.push_back(block(root / "h" / i, c));
    parts.norm = LayerNorm(root / "ln_f", c.width, c.bias);
    parts.head = c.head(at / "lm_head", tokens);
    return parts;
  }

 private:
  static Layer block(const Path& at, const ModelConfig& c) {
    const Init init = c.linear_init(), last = c.residual_init();
    const Branch attention{
        LayerNorm(at / "ln_1", c.width, c.bias),
        SelfAttention(at / "attn", c.width, c.heads,
                      {.bias = c.bias, .dropout = c.dropout, .init = init, .output_init = last})};
    const Branch mlp{LayerNorm(at / "ln_2", c.width, c.bias),
                     Mlp(at / "mlp", c.width, {.bias = c.bias, .init = init, .output_init = last})};
    return Block(at, {attention, mlp}, c.dropout);
  }
};

}  // namespace tg::nn
