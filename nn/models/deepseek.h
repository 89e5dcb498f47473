// DeepSeek, dense, under Hugging Face's names: Llama with multi-head latent attention.
#pragma once

#include <tilegrad/nn/layers/latent_attention.h>
#include <tilegrad/nn/models/rotary_stack.h>

namespace tg::nn {

struct DeepSeek {
  static constexpr const char *name = "deepseek", *title = "DeepSeek";
  std::int64_t latent = 32, query_latent = 0, rope_width = 8;  // as LatentAttention's
  std::int64_t mlp_width = 0;                                  // inside the MLP; 0: swiglu_width
  double theta = 10000;                                        // of rotary positions

  void fields(auto&& field) {
    field("latent", latent,
          Setting{.help = "size of the latent from which all heads' keys and values are computed",
                  .min = 1,
                  .max = 16384,
                  .after = "heads"});
    field("query_latent", query_latent,
          Setting{.help = "size of the queries' latent; 0: queries are not compressed",
                  .min = 0,
                  .max = 16384,
                  .after = "heads"});
    field("rope_width", rope_width,
          Setting{.help = "width of the rotary part of queries, and of the rotary key that all heads share",
                  .min = 2,
                  .max = 16384,
                  .after = "heads"});
    field("mlp_width", mlp_width, mlp_width_setting());
    field("theta", theta, theta_setting());
  }
  void complete(const ModelConfig& c) {
    if (mlp_width == 0) mlp_width = swiglu_width(c.width);
  }
  void check(const ModelConfig& c) const {
    check_rotary_stack(c, mlp_width, theta);
    check_size(latent, "width of the latent");
    if (query_latent != 0) check_size(query_latent, "width of the queries' latent");
    check_size(rope_width, "rotary width");
    if (rope_width % 2 != 0)
      throw ShapeError("[model] the rotary width must be even and positive, got " +
                       std::to_string(rope_width));
  }
  std::string text(const ModelConfig&) const {
    return ", latent " + std::to_string(latent) + " + " + std::to_string(rope_width) +
           (query_latent > 0 ? " and " + std::to_string(query_latent) : "");
  }
  ModelParts make(const Path& at, const ModelConfig& c) const {
    return rotary_stack(at, c, mlp_width, [&](const Path& place) {
      return LatentAttention(place, c.width, c.heads,
                             {.latent = latent,
                              .query_latent = query_latent,
                              .rope_width = rope_width,
                              .theta = theta,
                              .bias = c.bias,
                              .dropout = c.dropout,
                              .init = c.linear_init(),
                              .output_init = c.residual_init()});
    });
  }
};

}  // namespace tg::nn
