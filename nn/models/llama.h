// Llama under Hugging Face's names: rotary positions, RMSNorm, grouped-query attention, SwiGLU.
#pragma once

#include <tilegrad/nn/layers/attention.h>
#include <tilegrad/nn/models/rotary_stack.h>

namespace tg::nn {

struct Llama {
  static constexpr const char *name = "llama", *title = "Llama";
  std::int64_t key_heads = 0;  // 0: heads
  std::int64_t mlp_width = 0;  // inside the MLP; 0: swiglu_width
  double theta = 10000;        // of rotary positions

  void fields(auto&& field) {
    field("key_heads", key_heads,
          Setting{.help = "heads of keys and values, each shared by a group of heads",
                  .min = 0,
                  .max = 4096,
                  .shown = "0: --heads",
                  .after = "heads"});
    field("mlp_width", mlp_width, mlp_width_setting());
    field("theta", theta, theta_setting());
  }
  void complete(const ModelConfig& c) {
    if (key_heads == 0) key_heads = c.heads;
    if (mlp_width == 0) mlp_width = swiglu_width(c.width);
  }
  void check(const ModelConfig& c) const {
    check_rotary_stack(c, mlp_width, theta);
    if (key_heads < 0 || (key_heads > 0 && c.heads % key_heads != 0))
      throw ShapeError("[model] " + std::to_string(c.heads) + " heads are not divisible by " +
                       std::to_string(key_heads) + " key heads");
  }
  std::string text(const ModelConfig& c) const {
    if (key_heads <= 0 || key_heads == c.heads) return "";
    return ", " + std::to_string(key_heads) + " key head" + (key_heads == 1 ? "" : "s");
  }
  ModelParts make(const Path& at, const ModelConfig& c) const {
    return rotary_stack(at, c, mlp_width, [&](const Path& place) {
      return GroupedAttention(place, c.width, c.heads,
                              {.key_heads = key_heads,
                               .bias = c.bias,
                               .dropout = c.dropout,
                               .rope = {.theta = theta},
                               .init = c.linear_init(),
                               .output_init = c.residual_init()});
    });
  }
};

}  // namespace tg::nn
