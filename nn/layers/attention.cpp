#include <tilegrad/nn/layers/attention.h>

namespace tg::nn {

namespace detail {

std::int64_t head_width(const Path& at, std::int64_t width, std::int64_t heads) {
  if (heads <= 0 || width % heads != 0)
    throw ShapeError(at.refusal("attention", "width " + std::to_string(width) + " is not divisible by " +
                                                 std::to_string(heads) + " heads"));
  return width / heads;
}

Tensor by_head(const Tensor& x, std::int64_t heads) {
  return transpose(x.view({x.size(0), x.size(1), heads, x.size(2) / heads}), 1, 2);
}

Tensor merged(const Tensor& o) {
  return transpose(o, 1, 2).view({o.size(0), o.size(2), o.size(1) * o.size(3)});
}

Tensor positions_by_head(const Call& call) {
  return call.cache ? unsqueeze(call.cache->positions(), 1) : Tensor();
}

}  // namespace detail

namespace {

using detail::by_head, detail::merged, detail::product;

// Causal attention on [B, H, L, d] and [B, Hk, L, d], heads merged.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, double dropout, const Call& call,
              const std::string& path) {
  if (call.cache) return merged(call.cache->attend(path, q, k, v));
  AttentionOptions options{.causal = true};
  if (call.mode == Mode::train) options.dropout = dropout;
  return merged(flash_attn(q, k, v, options).o);
}

std::int64_t dividing(const Path& at, std::int64_t width, std::int64_t heads) {
  detail::head_width(at, width, heads);  // throws
  return heads;
}

GroupedAttention::Options checked(const Path& at, GroupedAttention::Options o, std::int64_t width,
                                  std::int64_t heads) {
  if (o.head_width == 0) o.head_width = detail::head_width(at, width, heads);
  if (o.key_heads == 0) o.key_heads = heads;
  if (o.key_heads < 1 || o.head_width < 1 || heads % o.key_heads != 0)
    throw ShapeError(at.refusal("attention", std::to_string(heads) + " query heads are not a multiple of " +
                                                 std::to_string(o.key_heads) + " key heads, or their width " +
                                                 std::to_string(o.head_width) + " is not positive"));
  return o;
}

}  // namespace

SelfAttention::SelfAttention(const Path& at, std::int64_t width, std::int64_t heads, Options o)
    : Module(at),
      heads_(dividing(at, width, heads)),
      dropout_(o.dropout),
      c_attn_(at / "c_attn", width, product(3, width), {.bias = o.bias, .init = o.init}),
      c_proj_(at / "c_proj", width, width, {.bias = o.bias, .init = o.output_init}) {
  at.setting(c_attn_.weight(), "heads", heads);
}

Tensor SelfAttention::record(TensorArg x, const Call& call) const {
  if (call.cache) call.cache->check(x);
  const auto qkv = chunk(c_attn_(x), 3, -1);  // three views
  const Tensor o = attend(by_head(qkv[0], heads_), by_head(qkv[1], heads_), by_head(qkv[2], heads_), dropout_,
                          call, path());
  return c_proj_(o, {.residual = call.residual});
}

GroupedAttention::GroupedAttention(const Path& at, std::int64_t width, std::int64_t heads, Options o)
    : GroupedAttention(at, width, checked(at, std::move(o), width, heads), heads) {}

GroupedAttention::GroupedAttention(const Path& at, std::int64_t width, const Options& o, std::int64_t heads)
    : Module(at),
      heads_(heads),
      key_heads_(o.key_heads),
      dropout_(o.dropout),
      rotate_(o.rotate),
      rope_(o.rope),
      q_proj_(at / "q_proj", width, product(heads, o.head_width), {.bias = o.bias, .init = o.init}),
      k_proj_(at / "k_proj", width, key_heads_ * o.head_width, {.bias = o.bias, .init = o.init}),
      v_proj_(at / "v_proj", width, key_heads_ * o.head_width, {.bias = o.bias, .init = o.init}),
      o_proj_(at / "o_proj", heads * o.head_width, width, {.bias = o.bias, .init = o.output_init}) {
  const Weight& weight = q_proj_.weight();
  at.setting(weight, "heads", heads);
  at.setting(weight, "rotate", rotate_);
  if (!rotate_) return;
  at.setting(weight, "interleaved", rope_.interleaved);
  at.setting(weight, "start", rope_.start);
  const std::int64_t dims = rope_.dims == 0 ? o.head_width : rope_.dims;
  if (!rope_.frequencies.empty()) {
    at.setting(weight, "frequencies", rope_.frequencies);
  } else {
    at.setting(weight, "theta", rope_.theta);
    at.setting(weight, "dims", dims);
  }
}

Tensor GroupedAttention::record(TensorArg x, const Call& call) const {
  if (call.cache) call.cache->check(x);
  Tensor q = by_head(q_proj_(x), heads_), k = by_head(k_proj_(x), key_heads_);
  if (rotate_) {
    const Tensor positions = detail::positions_by_head(call);
    q = rope(q, positions, rope_);
    k = rope(k, positions, rope_);
  }
  const Tensor v = by_head(v_proj_(x), key_heads_);
  return o_proj_(attend(q, k, v, dropout_, call, path()), {.residual = call.residual});
}

}  // namespace tg::nn
