#include <tilegrad/nn/layers/attention.h>

#include <cmath>

#include <tilegrad/nn/layers/context_parallel.h>
#include <tilegrad/ops/ring_attention.h>

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

Tensor positions_by_head(const Call& call, TensorArg x) {
  if (call.cache) return unsqueeze(call.cache->positions(), 1);
  return ContextParallel::positions(x.tensor().graph(), x.tensor().size(1));
}

bool is_short_call(const Call& call, TensorArg x, std::int64_t length) {
  return !call.cache && product(x.tensor().size(1), ContextParallel::ranks(x.tensor().graph())) <= length;
}

Tensor attended(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  return merged(ring_attention(q, k, v, ContextParallel::ranks(q.graph()), options).o);
}

}  // namespace detail

namespace {

using detail::by_head, detail::merged, detail::product;

struct Scores {
  double dropout = 0;  // in training
  PagedAttentionOptions options = {};
};

// Causal attention on [B, H, L, d] and [B, Hk, L, d], heads merged.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Scores& s, const Call& call,
              const std::string& path) {
  if (call.cache) return merged(call.cache->attend(path, q, k, v, s.options));
  AttentionOptions options{.scale = s.options.scale,
                           .causal = true,
                           .window_left = s.options.window_left,
                           .softcap = s.options.softcap};
  if (call.mode == Mode::train) options.dropout = s.dropout;
  return detail::attended(q, k, v, options);
}

std::int64_t dividing(const Path& at, std::int64_t width, std::int64_t heads) {
  detail::head_width(at, width, heads);  // throws
  return heads;
}

// Of a head's d numbers, those that rope turns: the first ones.
std::int64_t turning(const GroupedAttention::Options& o) {
  if (!o.rope.frequencies.empty()) return 2 * std::ssize(o.rope.frequencies);
  return o.rope.dims == 0 ? o.head_width : o.rope.dims;
}

GroupedAttention::Options checked(const Path& at, GroupedAttention::Options o, std::int64_t width,
                                  std::int64_t heads) {
  if (o.head_width == 0) o.head_width = detail::head_width(at, width, heads);
  if (o.key_heads == 0) o.key_heads = heads;
  if (o.key_heads < 1 || o.head_width < 1 || heads % o.key_heads != 0)
    throw ShapeError(at.refusal("attention", std::to_string(heads) + " query heads are not a multiple of " +
                                                 std::to_string(o.key_heads) + " key heads, or their width " +
                                                 std::to_string(o.head_width) + " is not positive"));
  at.check<ShapeError>("attention", {{"window", o.window, Range::whole_from(0)}});
  at.check("attention", {{"eps", o.eps, Range::at_least(0)},
                         {"scale", o.scale, Range::finite()},
                         {"softcap", o.softcap, Range::softcap(o.softcap)},
                         {"dropout", o.dropout, Range::from_below(0, 1)},
                         {"magnitude", o.magnitude, Range::above(0)},
                         {"theta", o.rope.theta, Range::above(0)}});
  if (o.rotate && o.short_length > 0 && 2 * std::ssize(o.short_frequencies) != turning(o))
    throw ShapeError(at.refusal("attention", "short_frequencies has the wrong size: got " +
                                                 std::to_string(std::ssize(o.short_frequencies)) +
                                                 ", expected half of " + std::to_string(turning(o))));
  if (!o.rotate) o.magnitude = 1;
  if (o.magnitude != 1 && turning(o) == o.head_width) {  // scores are a² times as large
    const double usual = o.scale == 0 ? 1 / std::sqrt(static_cast<double>(o.head_width)) : o.scale;
    o.scale = usual * o.magnitude * o.magnitude, o.magnitude = 1;
  }
  return o;
}

std::vector<RmsNorm> query_key_norms(const Path& at, std::int64_t heads, const GroupedAttention::Options& o) {
  using enum GroupedAttention::QueryKeyNorm;
  if (o.qk_norm == none) return {};
  const bool all = o.qk_norm == whole;
  return {RmsNorm(at / "q_norm", all ? heads * o.head_width : o.head_width, o.eps, o.plus_one),
          RmsNorm(at / "k_norm", all ? o.key_heads * o.head_width : o.head_width, o.eps, o.plus_one)};
}

}  // namespace

SelfAttention::SelfAttention(const Path& at, std::int64_t width, std::int64_t heads, Options o)
    : Module(at),
      heads_(dividing(at, width, heads)),
      dropout_(o.dropout),
      c_attn_(at / "c_attn", width, product(3, width), {.bias = o.bias, .init = o.init}),
      c_proj_(at / "c_proj", width, width, {.bias = o.bias, .init = o.output_init}) {
  at.check("attention", {{"dropout", dropout_, Range::from_below(0, 1)}});
  at.setting(c_attn_.weight(), "heads", heads);
}

Tensor SelfAttention::record(TensorArg x, const Call& call) const {
  if (call.cache) call.cache->check(x);
  const auto qkv = chunk(c_attn_(x, {.mode = call.mode}), 3, -1);  // three views
  const Tensor o = attend(by_head(qkv[0], heads_), by_head(qkv[1], heads_), by_head(qkv[2], heads_),
                          {.dropout = dropout_}, call, path());
  return c_proj_(o, {.mode = call.mode, .residual = call.residual});
}

GroupedAttention::GroupedAttention(const Path& at, std::int64_t width, std::int64_t heads, Options o)
    : GroupedAttention(at, width, checked(at, std::move(o), width, heads), heads) {}

GroupedAttention::GroupedAttention(const Path& at, std::int64_t width, const Options& o, std::int64_t heads)
    : Module(at),
      heads_(heads),
      o_(o),
      q_proj_(at / "q_proj", width, product(heads, o.head_width),
              {.bias = o.bias || o.qkv_bias, .init = o.init}),
      k_proj_(at / "k_proj", width, o.key_heads * o.head_width,
              {.bias = o.bias || o.qkv_bias, .init = o.init}),
      v_proj_(at / "v_proj", width, o.key_heads * o.head_width,
              {.bias = o.bias || o.qkv_bias, .init = o.init}),
      o_proj_(at / "o_proj", heads * o.head_width, width, {.bias = o.bias, .init = o.output_init}),
      norms_(query_key_norms(at, heads, o)) {
  keep_settings(at);
}

void GroupedAttention::keep_settings(const Path& at) const {
  const Weight& weight = q_proj_.weight();
  at.setting(weight, "heads", heads_);
  if (o_.window > 0) at.setting(weight, "window", o_.window);
  if (o_.scale != 0) at.setting(weight, "scale", o_.scale);
  if (o_.softcap != 0) at.setting(weight, "softcap", o_.softcap);
  at.setting(weight, "rotate", o_.rotate);
  if (!o_.rotate) return;
  if (o_.magnitude != 1) at.setting(weight, "magnitude", o_.magnitude);
  at.setting(weight, "interleaved", o_.rope.interleaved);
  at.setting(weight, "start", o_.rope.start);
  if (!o_.rope.frequencies.empty()) {
    at.setting(weight, "frequencies", o_.rope.frequencies);
  } else {
    at.setting(weight, "theta", o_.rope.theta);
    at.setting(weight, "dims", turning(o_));
  }
  if (o_.short_length <= 0) return;
  at.setting(weight, "short_frequencies", o_.short_frequencies);
  at.setting(weight, "short_length", o_.short_length);
}

Tensor GroupedAttention::rotated(const Tensor& x, std::int64_t heads, std::size_t norm,
                                 const Tensor& positions, const RopeOptions& rotation) const {
  Tensor y;
  if (norms_.empty()) {
    y = by_head(x, heads);
  } else if (o_.qk_norm == QueryKeyNorm::whole) {
    y = by_head(norms_[norm](x), heads);
  } else {
    y = transpose(norms_[norm](x.view({x.size(0), x.size(1), heads, o_.head_width})), 1, 2);
  }
  return o_.rotate ? rope(y, positions, rotation) : y;
}

// a² in the scores of what turns, and 1 in the rest.
Tensor GroupedAttention::magnified(const Tensor& k) const {
  const auto parts = split(k, {turning(o_), o_.head_width - turning(o_)}, -1);
  return concat({parts[0] * (o_.magnitude * o_.magnitude), parts[1]}, -1);
}

Tensor GroupedAttention::record(TensorArg x, const Call& call) const {
  if (call.cache) call.cache->check(x);
  const Call same{.mode = call.mode};
  const Tensor positions = o_.rotate ? detail::positions_by_head(call, x) : Tensor();
  RopeOptions rotation = o_.rope;
  if (o_.short_length > 0 && detail::is_short_call(call, x, o_.short_length))
    rotation.frequencies = o_.short_frequencies;
  const Tensor q = rotated(q_proj_(x, same), heads_, 0, positions, rotation);
  Tensor k = rotated(k_proj_(x, same), o_.key_heads, 1, positions, rotation);
  if (o_.magnitude != 1) k = magnified(k);
  const Tensor v = by_head(v_proj_(x, same), o_.key_heads);
  Scores scores{.dropout = o_.dropout, .options = {.softcap = o_.softcap}};
  if (o_.scale != 0) scores.options.scale = o_.scale;
  if (o_.window > 0) scores.options.window_left = o_.window - 1;
  return o_proj_(attend(q, k, v, scores, call, path()), {.mode = call.mode, .residual = call.residual});
}

}  // namespace tg::nn
