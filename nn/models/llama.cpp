#include <tilegrad/nn/models/llama.h>

#include <tilegrad/nn/layers/attention.h>

namespace tg::nn {

namespace {

GroupedAttention::QueryKeyNorm qk_norm_named(const std::string& name) {
  using enum GroupedAttention::QueryKeyNorm;
  if (name == "none") return none;
  if (name == "head") return head;
  if (name == "whole") return whole;
  throw Error("[model] qk_norm: got '" + name + "', expected none, head or whole");
}

NormPosition norm_place_named(const std::string& name) {
  if (name == "before") return NormPosition::before;
  if (name == "after") return NormPosition::after;
  if (name == "both") return NormPosition::both;
  throw Error("[model] norms: got '" + name + "', expected before, after or both");
}

std::int64_t of_layer(const std::vector<std::int64_t>& list, std::int64_t layer, std::int64_t otherwise) {
  return list.empty() ? otherwise : list[static_cast<std::size_t>(layer) % list.size()];
}

}  // namespace

RotaryStack Llama::stack() const {
  return {.mlp_width = mlp_width,
          .mlp_bias = mlp_bias,
          .activation = activation_named(activation),
          .eps = eps,
          .norms = norm_place_named(norms),
          .plus_one = plus_one,
          .embedding_scale = embedding_scale,
          .softcap = logit_softcap};
}

void Llama::complete(const ModelConfig& c) {
  if (key_heads == 0) key_heads = c.heads;
  if (mlp_width == 0) mlp_width = swiglu_width(c.width);
}

void Llama::check(const ModelConfig& c) const {
  stack().check(c);
  qk_norm_named(qk_norm);
  if (head_width == 0) check_divisible(c);
  const std::int64_t d = head_width == 0 ? c.width / c.heads : head_width;
  const std::int64_t turning = rotary_width == 0 ? d : rotary_width;
  check_rotary(turning, theta);
  if (turning > d)
    throw ShapeError("[model] a rotary width of " + std::to_string(turning) + " in heads of width " +
                     std::to_string(d));
  check_size(d, "width of a head");
  if (window_theta != 0) check_rotary(2, window_theta);
  scaling.check(turning);
  check_options<ShapeError>("model", {{"key_heads", key_heads, Range::size(0)}});
  if (key_heads > 0 && c.heads % key_heads != 0)
    throw ShapeError("[model] " + std::to_string(c.heads) + " heads are not divisible by " +
                     std::to_string(key_heads) + " key heads");
  for (const std::int64_t w : windows)
    check_options<ShapeError>("model", {{"window", w, Range::whole_from(0)}});
  check_options("model", {{"attention_scale", attention_scale, Range::at_least(0)},
                          {"attention_softcap", attention_softcap, Range::softcap(attention_softcap)}});
}

std::string Llama::text(const ModelConfig& c) const {
  if (key_heads <= 0 || key_heads == c.heads) return "";
  return ", " + std::to_string(key_heads) + " key head" + (key_heads == 1 ? "" : "s");
}

ModelParts Llama::make(const Path& at, const ModelConfig& c) const {
  const std::int64_t turning = rotary_width != 0 ? rotary_width
                               : head_width != 0 ? head_width
                                                 : c.width / c.heads;
  GroupedAttention::Options o{.key_heads = key_heads,
                              .head_width = head_width,
                              .bias = c.bias || attention_bias,
                              .qkv_bias = qkv_bias,
                              .qk_norm = qk_norm_named(qk_norm),
                              .eps = eps,
                              .plus_one = plus_one,
                              .softcap = attention_softcap,
                              .dropout = c.dropout,
                              .init = c.linear_init(),
                              .output_init = c.residual_init()};
  return stack().make(at, c, [&](const Path& place, std::int64_t layer) {
    o.window = of_layer(windows, layer, 0);
    o.rotate = of_layer(rotated, layer, 1) != 0;
    o.scale = attention_scale;
    const bool is_local = o.window > 0 && window_theta != 0;
    const bool is_scaled = !is_local && !scaling.is_none();
    o.rope = {.theta = is_local ? window_theta : theta, .dims = rotary_width};
    if (is_scaled) o.rope.frequencies = scaling.frequencies(turning, theta, c.context);
    o.short_length = is_scaled ? scaling.short_length(c.context) : 0;
    if (o.short_length > 0) o.short_frequencies = scaling.frequencies(turning, theta, o.short_length);
    o.magnitude = is_scaled ? scaling.magnitude : 1;
    return GroupedAttention(place, c.width, c.heads, o);
  });
}

}  // namespace tg::nn
