#include <tilegrad/nn/models/rotary_stack.h>

#include <tilegrad/nn/models/model_parts.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

namespace {

Layer scaled_embedding(const Embedding& tokens, double scale) {
  if (scale == 1) return tokens;
  return Layer(tokens.name(), [=](TensorArg ids, const Call& call) {
    const Tensor x = tokens(ids, call);
    // Rounded to the weights' dtype first, as the models were trained.
    Array factor({1}, x.dtype());
    factor.set(0, scale);
    return x * factor.at(0);
  });
}

Layer capped_head(const Layer& head, double cap) {
  if (cap == 0) return head;
  return Layer("softcap",
               [=](TensorArg x, const Call& call) { return tanh(head(x, call) * (1 / cap)) * cap; });
}

}  // namespace

std::int64_t swiglu_width(std::int64_t width) {
  if (width < 0 || width > max_elements) throw ShapeError("[swiglu] got a width of " + std::to_string(width));
  return (8 * width / 3 + 7) / 8 * 8;
}

ModelParts RotaryStack::make(
    const Path& at, const ModelConfig& c,
    const std::function<Layer(const Path& at, std::int64_t layer)>& attention) const {
  const std::int64_t inner = mlp_width == 0 ? swiglu_width(c.width) : mlp_width;
  const Path root = at / "model";
  const auto norm = [&](const Path& place) { return RmsNorm(place, c.width, eps, plus_one); };
  const Embedding tokens(root / "embed_tokens", c.vocabulary, c.width, c.embedding_init());
  ModelParts parts{.name = root.name(),
                   .context = c.context,
                   .tokens = scaled_embedding(tokens, embedding_scale),
                   .dropout = c.dropout};
  for (int i = 0; i < c.layers; ++i) {
    const Path block = root / "layers" / i;
    Branch first, second;
    if (norms != NormPlace::after) first.norm = norm(block / "input_layernorm");
    first.layer = attention(block / "self_attn", i);
    if (norms != NormPlace::before) first.after = norm(block / "post_attention_layernorm");
    if (norms == NormPlace::before) second.norm = norm(block / "post_attention_layernorm");
    if (norms == NormPlace::both) second.norm = norm(block / "pre_feedforward_layernorm");
    second.layer = GatedMlp(block / "mlp", c.width, inner,
                            {.activation = activation,
                             .bias = c.bias || mlp_bias,
                             .init = c.linear_init(),
                             .output_init = c.residual_init()});
    if (norms != NormPlace::before) second.after = norm(block / "post_feedforward_layernorm");
    parts.blocks.push_back(Block(block, {first, second}, c.dropout));
  }
  parts.norm = norm(root / "norm");
  parts.head = capped_head(c.head(at / "lm_head", tokens), softcap);
  return parts;
}

void RotaryStack::check(const ModelConfig& c) const {
  check_size(mlp_width == 0 ? swiglu_width(c.width) : mlp_width, "width of the MLP");
  check_options("model", {{"eps", eps, Range::at_least(0)},
                          {"embedding_scale", embedding_scale, Range::above(0)},
                          {"logit_softcap", softcap, Range::softcap(softcap)}});
}

void check_rotary(std::int64_t head_width, double theta) {
  check_size(head_width, "width of a head");
  if (head_width % 2 != 0)
    throw ShapeError("[model] heads of width " + std::to_string(head_width) + " have no rotary pairs");
  check_options("model", {{"theta", theta, Range::above(0)}});
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
