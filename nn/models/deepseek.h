// The dense DeepSeek architecture with Hugging Face's parameter names: Llama with multi-head latent
// attention.
#pragma once

#include <tilegrad/nn/layers/attention.h>
#include <tilegrad/nn/models/rotary_stack.h>

namespace tg::nn {

// The settings of DeepSeek models.
struct DeepSeek {
  // See Architecture.
  static constexpr const char *name = "deepseek", *title = "DeepSeek";
  std::int64_t latent = 32, query_latent = 0, rope_width = 8;  // as LatentAttention's
  std::int64_t mlp_width = 0;                                  // hidden size of the MLPs; 0: swiglu_width
  double theta = 10000;                                        // base of the rotary frequencies
  std::int64_t head_width = 0, value_width = 0;                // as LatentAttention's
  double eps = 1e-6;            // of the blocks' norms; the latents' norms use 1e-6
  bool attention_bias = false;  // as LatentAttention's bias, if ModelConfig::bias is false
  bool interleaved = true;      // as LatentAttention's
  double attention_scale = 0;   // factor of scores; 0: 1/√(head_width + rope_width)
  RopeScaling scaling = {};     // of the rotary frequencies

  // Calls field(name, member, setting) for each setting; see settings_of.
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
    field("head_width", head_width, Setting{.absent = "0"});
    field("value_width", value_width, Setting{.absent = "0"});
    field("eps", eps, Setting{.absent = "1e-06"});
    field("attention_bias", attention_bias, Setting{.absent = "false"});
    field("interleaved", interleaved, Setting{.absent = "true"});
    field("attention_scale", attention_scale, Setting{.absent = "0"});
    scaling.fields(field);
  }
  // Sets mlp_width to swiglu_width if it is 0.
  void complete(const ModelConfig& c) {
    if (mlp_width == 0) mlp_width = swiglu_width(c.width);
  }
  // Throws ShapeError for invalid sizes and Error for other invalid settings.
  void check(const ModelConfig& c) const {
    stack().check(c);
    if (head_width == 0) check_divisible(c);
    check_rotary(head_width == 0 ? c.width / c.heads : head_width, theta);
    if (value_width != 0) check_size(value_width, "width of values");
    check_options("model", {{"attention_scale", attention_scale, Range::at_least(0)}});
    check_size(latent, "width of the latent");
    if (query_latent != 0) check_size(query_latent, "width of the queries' latent");
    check_size(rope_width, "rotary width");
    if (rope_width % 2 != 0)
      throw ShapeError("[model] the rotary width must be even and positive, got " +
                       std::to_string(rope_width));
    scaling.check(rope_width);
  }
  // Returns the sizes of the latents.
  std::string text(const ModelConfig&) const {
    return ", latent " + std::to_string(latent) + " + " + std::to_string(rope_width) +
           (query_latent > 0 ? " and " + std::to_string(query_latent) : "");
  }
  // Creates the layers of a model on `at`.
  ModelParts make(const Path& at, const ModelConfig& c) const {
    const std::int64_t short_length = scaling.short_length(c.context);
    const LatentAttention::Options options{
        .latent = latent,
        .query_latent = query_latent,
        .rope_width = rope_width,
        .head_width = head_width,
        .value_width = value_width,
        .theta = theta,
        .frequencies =
            scaling.is_none() ? std::vector<double>() : scaling.frequencies(rope_width, theta, c.context),
        .short_frequencies =
            short_length > 0 ? scaling.frequencies(rope_width, theta, short_length) : std::vector<double>(),
        .short_length = short_length,
        .interleaved = interleaved,
        .magnitude = scaling.magnitude,
        .scale = attention_scale,
        .bias = c.bias || attention_bias,
        .dropout = c.dropout,
        .init = c.linear_init(),
        .output_init = c.residual_init()};
    return stack().make(at, c, [&](const Path& place, std::int64_t) {
      return LatentAttention(place, c.width, c.heads, options);
    });
  }

 private:
  RotaryStack stack() const { return {.mlp_width = mlp_width, .eps = eps}; }
};

}  // namespace tg::nn
