// Small gradcheck cases for every layer.
#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/model.h>
#include "tools/gradcheck/select.h"

namespace tg {

namespace {

using gradcheck::Callable;
using gradcheck::Case;
using LayerFunction = std::function<Tensor(std::span<const Tensor>)>;

// A case for a layer built on new parameters of the dtype under test. `build` creates the layer and returns a
// function that calls it.
Case layer(std::string owner, std::string name, std::vector<SampleInput> inputs,
           std::function<LayerFunction(const nn::Path&)> build) {
  return {std::move(owner), std::move(name), std::move(inputs), [build](DType dtype, Device device) {
            const auto params = std::make_shared<nn::Params>(1, dtype, device);
            const LayerFunction call = build(nn::Path(*params) / "layer");
            return Callable{params->all(), [params, call](std::span<const Tensor> x) {
                              return std::vector<Tensor>{call(x)};
                            }};
          }};
}

// For layers that map one tensor to one tensor.
template <class Layer>
LayerFunction of_one(Layer layer) {
  return [layer](std::span<const Tensor> x) { return layer(x[0]); };
}

// For layers that add a second tensor (a residual) to their output.
template <class Layer>
LayerFunction with_residual(Layer layer) {
  return [layer](std::span<const Tensor> x) { return layer(x[0], {.residual = x[1]}); };
}
template <class Layer>
LayerFunction training_with_residual(Layer layer) {
  return
      [layer](std::span<const Tensor> x) { return layer(x[0], {.mode = nn::Mode::train, .residual = x[1]}); };
}

nn::ModelConfig small(bool bias, bool tied, double dropout) {
  return {.vocabulary = 5,
          .context = 4,
          .layers = 1,
          .heads = 2,
          .width = 4,
          .dropout = dropout,
          .bias = bias,
          .tied_head = tied};
}

nn::ModelConfig small(const nn::Architecture& architecture) {
  nn::ModelConfig c = small(false, true, 0);
  c.architecture = architecture;
  return c;
}

LayerFunction model(const nn::Path& at, const nn::ModelConfig& config, nn::Mode mode = nn::Mode::evaluate) {
  return [model = nn::Model(at, config), mode](std::span<const Tensor> x) {
    return model(x[0], {.mode = mode});
  };
}

nn::Block block(const nn::Path& at) {
  const nn::Init last = small(true, true, 0).residual_init();
  const nn::Branch attention{nn::LayerNorm(at / "ln_1", 4),
                             nn::SelfAttention(at / "attn", 4, 2, {.output_init = last})};
  const nn::Branch mlp{nn::LayerNorm(at / "ln_2", 4), nn::Mlp(at / "mlp", 4, {.output_init = last})};
  return nn::Block(at, {attention, mlp});
}

}  // namespace

std::vector<Case> layer_cases() {
  const SampleInput rows{{2, 3, 4}}, wide{{1, 3, 8}}, tokens{{2, 3}, {Fill::index, 0, 5}};
  return {
      layer("Linear", "with bias", {rows}, [](const nn::Path& at) { return of_one(nn::Linear(at, 4, 3)); }),
      layer("Linear", "without bias", {rows},
            [](const nn::Path& at) { return of_one(nn::Linear(at, 4, 3, {.bias = false})); }),
      layer("Linear", "residual", {rows, {{2, 3, 5}}},
            [](const nn::Path& at) { return with_residual(nn::Linear(at, 4, 5)); }),
      layer("Embedding", "rows", {tokens},
            [](const nn::Path& at) { return of_one(nn::Embedding(at, 5, 4)); }),
      layer("Embedding", "as a head", {rows},
            [](const nn::Path& at) { return of_one(nn::Embedding(at, 5, 4).head()); }),
      layer("LayerNorm", "with bias", {rows},
            [](const nn::Path& at) { return of_one(nn::LayerNorm(at, 4)); }),
      layer("LayerNorm", "without bias", {rows},
            [](const nn::Path& at) { return of_one(nn::LayerNorm(at, 4, false)); }),
      layer("RmsNorm", "rows", {rows}, [](const nn::Path& at) { return of_one(nn::RmsNorm(at, 4)); }),
      layer("RmsNorm", "gains 1 + w", {rows},
            [](const nn::Path& at) { return of_one(nn::RmsNorm(at, 4, 1e-3, true)); }),
      layer("SelfAttention", "two heads", {rows},
            [](const nn::Path& at) { return of_one(nn::SelfAttention(at, 4, 2)); }),
      layer("SelfAttention", "dropout and residual", {rows, rows},
            [](const nn::Path& at) {
              return training_with_residual(nn::SelfAttention(at, 4, 2, {.dropout = 0.3}));
            }),
      layer("GroupedAttention", "two heads to a key head", {wide},
            [](const nn::Path& at) { return of_one(nn::GroupedAttention(at, 8, 4, {.key_heads = 2})); }),
      layer("GroupedAttention", "one key head, bias, interleaved pairs, low frequencies", {rows},
            [](const nn::Path& at) {
              return of_one(nn::GroupedAttention(
                  at, 4, 2, {.key_heads = 1, .bias = true, .rope = {.theta = 30, .interleaved = true}}));
            }),
      layer("GroupedAttention", "no positions, wider heads, dropout and residual", {rows, rows},
            [](const nn::Path& at) {
              return training_with_residual(
                  nn::GroupedAttention(at, 4, 2, {.head_width = 3, .dropout = 0.3, .rotate = false}));
            }),
      layer("GroupedAttention", "norms of heads, a window, a scale and a softcap", {wide},
            [](const nn::Path& at) {
              return of_one(nn::GroupedAttention(at, 8, 4,
                                                 {.key_heads = 2,
                                                  .qkv_bias = true,
                                                  .qk_norm = nn::GroupedAttention::QueryKeyNorm::head,
                                                  .window = 2,
                                                  .scale = 0.6,
                                                  .softcap = 3,
                                                  .rope = {.frequencies = {0.5}}}));
            }),
      layer("GroupedAttention", "partial rotation, magnitude", {wide},
            [](const nn::Path& at) {
              return of_one(nn::GroupedAttention(
                  at, 8, 2, {.key_heads = 1, .rope = {.frequencies = {0.7}}, .magnitude = 1.3}));
            }),
      layer("GroupedAttention", "norms of whole rows", {wide},
            [](const nn::Path& at) {
              return of_one(nn::GroupedAttention(
                  at, 8, 4, {.key_heads = 2, .qk_norm = nn::GroupedAttention::QueryKeyNorm::whole}));
            }),
      layer("LatentAttention", "plain queries", {rows},
            [](const nn::Path& at) {
              return of_one(nn::LatentAttention(at, 4, 2, {.latent = 3, .rope_width = 2}));
            }),
      layer("LatentAttention", "compressed queries, other values, bias", {rows},
            [](const nn::Path& at) {
              return of_one(nn::LatentAttention(at, 4, 2,
                                                {.latent = 3,
                                                 .query_latent = 3,
                                                 .rope_width = 4,
                                                 .head_width = 2,
                                                 .value_width = 3,
                                                 .theta = 30,
                                                 .bias = true}));
            }),
      layer("LatentAttention", "rotary halves, a magnitude and a scale", {rows},
            [](const nn::Path& at) {
              return of_one(nn::LatentAttention(at, 4, 2,
                                                {.latent = 3,
                                                 .rope_width = 4,
                                                 .frequencies = {0.7, 0.2},
                                                 .interleaved = false,
                                                 .magnitude = 1.2,
                                                 .scale = 0.5}));
            }),
      layer("LatentAttention", "dropout and residual", {rows, rows},
            [](const nn::Path& at) {
              return training_with_residual(
                  nn::LatentAttention(at, 4, 2, {.latent = 3, .rope_width = 2, .dropout = 0.3}));
            }),
      layer("Mlp", "rows", {rows}, [](const nn::Path& at) { return of_one(nn::Mlp(at, 4)); }),
      layer("Mlp", "gelu by tanh", {rows},
            [](const nn::Path& at) {
              return of_one(nn::Mlp(at, 4, {.inner = 5, .activation = nn::Activation::gelu_tanh}));
            }),
      layer("GatedMlp", "rows", {rows}, [](const nn::Path& at) { return of_one(nn::GatedMlp(at, 4, 5)); }),
      layer("GatedMlp", "bias and residual", {rows, rows},
            [](const nn::Path& at) { return with_residual(nn::GatedMlp(at, 4, 3, {.bias = true})); }),
      layer("Block", "with bias", {rows}, [](const nn::Path& at) { return of_one(block(at)); }),
      layer("Model", "tied head", {tokens},
            [](const nn::Path& at) { return model(at, small(false, true, 0)); }),
      layer("Model", "head, bias and dropout", {tokens},
            [](const nn::Path& at) { return model(at, small(true, false, 0.2), nn::Mode::train); }),
      layer("Model", "llama", {tokens},
            [](const nn::Path& at) {
              return model(at, small(nn::Llama{.key_heads = 1, .mlp_width = 5, .theta = 30}));
            }),
      layer("Model", "deepseek", {tokens},
            [](const nn::Path& at) {
              return model(
                  at, small(nn::DeepSeek{
                          .latent = 3, .query_latent = 3, .rope_width = 2, .mlp_width = 5, .theta = 30}));
            }),
  };
}

}  // namespace tg
