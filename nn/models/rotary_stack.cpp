#include <tilegrad/nn/models/rotary_stack.h>

#include <tilegrad/nn/layers/mlp.h>
#include <tilegrad/nn/models/block.h>

namespace tg::nn {

std::int64_t swiglu_width(std::int64_t width) {
  if (width < 0 || width > max_elements) throw ShapeError("[swiglu] got a width of " + std::to_string(width));
  return (8 * width / 3 + 7) / 8 * 8;
}

ModelParts rotary_stack(const Path& at, const ModelConfig& c, std::int64_t mlp_width,
                        const std::function<Layer(const Path& at)>& attention) {
  if (mlp_width == 0) mlp_width = swiglu_width(c.width);
  const Path root = at / "model";
  const Embedding tokens(root / "embed_tokens", c.vocabulary, c.width, c.embedding_init());
  ModelParts parts{.name = root.name(), .context = c.context, .tokens = tokens, .dropout = c.dropout};
  for (int i = 0; i < c.layers; ++i) {
    const Path block = root / "layers" / i;
    const Branch first{RmsNorm(block / "input_layernorm", c.width), attention(block / "self_attn")};
    const Branch second{
        RmsNorm(block / "post_attention_layernorm", c.width),
        GatedMlp(block / "mlp", c.width, mlp_width,
                 {.bias = c.bias, .init = c.linear_init(), .output_init = c.residual_init()})};
    parts.blocks.push_back(Block(block, {first, second}, c.dropout));
  }
  parts.norm = RmsNorm(root / "norm", c.width);
  parts.head = c.head(at / "lm_head", tokens);
  return parts;
}

void check_rotary_stack(const ModelConfig& c, std::int64_t mlp_width, double theta) {
  check_size(mlp_width == 0 ? swiglu_width(c.width) : mlp_width, "width of the MLP");
  check_size(c.heads, "number of heads");
  if (const std::int64_t d = c.width / c.heads; d % 2 != 0)
    throw ShapeError("[model] heads of width " + std::to_string(d) + " have no rotary pairs");
  if (!(theta > 0)) throw Error("[model] theta must be positive, got " + std::to_string(theta));
}

Setting mlp_width_setting() {
  return {.help = "channels inside the MLP",
          .min = 0,
          .max = 65536,
          .shown = "0: 8/3 of --width",
          .after = "width"};
}

Setting theta_setting() {
  return {.help = "base of the rotary frequencies", .min = 1, .max = 1e12, .after = "width"};
}

}  // namespace tg::nn
