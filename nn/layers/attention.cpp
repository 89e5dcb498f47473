#include <tilegrad/nn/layers/attention.h>

#include <cmath>
#include <limits>

#include <tilegrad/nn/layers/context_parallel.h>
#include <tilegrad/ops/ring_attention.h>

namespace tg::nn {

namespace {

using detail::product;

// Returns width / heads. Throws ShapeError if it is not an integer.
std::int64_t head_width(const Path& at, std::int64_t width, std::int64_t heads) {
  if (heads <= 0 || width % heads != 0)
    throw ShapeError(at.refusal("attention", "width " + std::to_string(width) + " is not divisible by " +
                                                 std::to_string(heads) + " heads"));
  return width / heads;
}

// Views [B, L, heads·d] as [B, heads, L, d].
Tensor by_head(const Tensor& x, std::int64_t heads) {
  return transpose(x.view({x.size(0), x.size(1), heads, x.size(2) / heads}), 1, 2);
}

// Views a result of flash_attn [B, H, L, d] as [B, L, H·d].
Tensor merged(const Tensor& o) {
  return transpose(o, 1, 2).view({o.size(0), o.size(2), o.size(1) * o.size(3)});
}

// The positions for RoPE on [B, H, L, d] if a layer's input is x [B, L, …]:
// - With a cache, the positions follow the cached tokens: [B, 1, L].
// - With ContextParallel, they are the positions of the rank's tokens: [L].
// - Otherwise the result is undefined, which means 0, 1, ….
Tensor positions_by_head(const CallArgs& call, TensorArg x) {
  if (call.cache) return unsqueeze(call.cache->positions(), 1);
  return ContextParallel::positions(x.tensor().graph(), x.tensor().size(1));
}

// Whether the call has no cache and its sequences have at most `length` tokens on all ranks together. False
// if `length` is 0.
bool is_short_call(const CallArgs& call, TensorArg x, std::int64_t length) {
  return length > 0 && !call.cache &&
         product(x.tensor().size(1), ContextParallel::ranks(x.tensor().graph())) <= length;
}

// Returns causal attention on [B, H, L, d] and [B, Hk, L, d], with dropout in training and merged heads.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const PagedAttentionOptions& o,
              double dropout, const CallArgs& call, const std::string& path) {
  if (call.cache) return merged(call.cache->attend(path, q, k, v, o));
  AttentionOptions options{
      .scale = o.scale, .causal = true, .window_left = o.window_left, .softcap = o.softcap};
  if (call.mode == Mode::train) options.dropout = dropout;
  return merged(ring_attention(q, k, v, ContextParallel::ranks(q.graph()), options).o);
}

std::int64_t dividing(const Path& at, std::int64_t width, std::int64_t heads) {
  head_width(at, width, heads);  // throws ShapeError
  return heads;
}

// Returns the number of rotated elements of a head. These are the first elements.
std::int64_t turning(const GroupedAttention::Options& o) {
  if (!o.rope.frequencies.empty()) return 2 * std::ssize(o.rope.frequencies);
  return o.rope.dims == 0 ? o.head_width : o.rope.dims;
}

GroupedAttention::Options checked(const Path& at, GroupedAttention::Options o, std::int64_t width,
                                  std::int64_t heads) {
  if (o.head_width == 0) o.head_width = head_width(at, width, heads);
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
  if (o.magnitude != 1 && turning(o) == o.head_width) {  // scores are multiplied by a²
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

LatentAttention::Options checked(const Path& at, LatentAttention::Options o, std::int64_t width,
                                 std::int64_t heads) {
  if (o.head_width == 0) o.head_width = head_width(at, width, heads);
  if (o.value_width == 0) o.value_width = o.head_width;
  const auto refuse = [&](const std::string& what, std::int64_t got) {
    throw ShapeError(at.refusal("attention", what + ", got " + std::to_string(got)));
  };
  if (heads < 1) refuse("expected a positive number of heads", heads);
  if (o.latent < 1) refuse("expected a positive width of the latent", o.latent);
  if (o.query_latent < 0) refuse("the width of the queries' latent must not be negative", o.query_latent);
  if (o.value_width < 1) refuse("expected a positive width of values", o.value_width);
  if (o.rope_width < 2 || o.rope_width % 2 != 0) refuse("the rotary width must be even", o.rope_width);
  if (o.head_width < 1 || o.head_width % 2 != 0) refuse("a head's width must be even", o.head_width);
  if (!o.frequencies.empty() && std::ssize(o.frequencies) * 2 != o.rope_width)
    refuse("expected half as many frequencies as the rotary width", std::ssize(o.frequencies));
  if (o.short_length > 0 && std::ssize(o.short_frequencies) * 2 != o.rope_width)
    refuse("expected half as many short_frequencies as the rotary width", std::ssize(o.short_frequencies));
  for (const std::int64_t n : {heads, o.latent, o.query_latent, o.value_width, o.rope_width, o.head_width})
    if (n > std::numeric_limits<std::int32_t>::max()) refuse("expected sizes below 2^31", n);
  at.check("attention", {{"eps", o.eps, Range::at_least(0)},
                         {"scale", o.scale, Range::finite()},
                         {"dropout", o.dropout, Range::from_below(0, 1)},
                         {"magnitude", o.magnitude, Range::above(0)},
                         {"theta", o.theta, Range::above(0)}});
  if (o.scale == 0) o.scale = 1 / std::sqrt(static_cast<double>(o.head_width + o.rope_width));
  return o;
}

// Creates q_proj, or q_a_proj and q_b_proj.
std::vector<Linear> query_layers(const Path& at, std::int64_t width, std::int64_t heads,
                                 const LatentAttention::Options& o) {
  const std::int64_t queries = product(heads, o.head_width + o.rope_width);
  const Linear::Options plain{.bias = false, .init = o.init};
  if (o.query_latent == 0) return {Linear(at / "q_proj", width, queries, plain)};
  return {Linear(at / "q_a_proj", width, o.query_latent, {.bias = o.bias, .init = o.init}),
          Linear(at / "q_b_proj", o.query_latent, queries, plain)};
}

std::vector<RmsNorm> query_norm(const Path& at, const LatentAttention::Options& o) {
  if (o.query_latent == 0) return {};
  return {RmsNorm(at / "q_a_layernorm", o.query_latent, o.eps)};
}

// Must be called after the weights are created, so that a file with a wrong width is rejected first.
std::vector<double> pair_frequencies(const LatentAttention::Options& o, bool is_short = false) {
  if (is_short && o.short_length > 0) return o.short_frequencies;
  return o.frequencies.empty() ? rope_frequencies(o.rope_width, o.theta) : o.frequencies;
}

RopeOptions query_rope(const LatentAttention::Options& o, bool is_short) {
  const std::vector<double> pairs = pair_frequencies(o, is_short);
  if (!o.interleaved) return {.frequencies = pairs};
  std::vector<double> frequencies(static_cast<std::size_t>(o.head_width / 2), 0.0);
  frequencies.insert(frequencies.end(), pairs.begin(), pairs.end());
  return {.interleaved = true, .frequencies = std::move(frequencies)};
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

Tensor SelfAttention::record(TensorArg x, const CallArgs& call) const {
  if (call.cache) call.cache->check(x);
  const auto qkv = chunk(c_attn_(x, {.mode = call.mode}), 3, -1);  // three views
  const Tensor o = attend(by_head(qkv[0], heads_), by_head(qkv[1], heads_), by_head(qkv[2], heads_), {},
                          dropout_, call, path());
  return c_proj_(o, {.mode = call.mode, .residual = call.residual});
}

GroupedAttention::GroupedAttention(const Path& at, std::int64_t width, std::int64_t heads, Options o)
    : Module(at),
      heads_(heads),
      o_(checked(at, std::move(o), width, heads)),
      q_proj_(at / "q_proj", width, product(heads, o_.head_width),
              {.bias = o_.bias || o_.qkv_bias, .init = o_.init}),
      k_proj_(at / "k_proj", width, o_.key_heads * o_.head_width,
              {.bias = o_.bias || o_.qkv_bias, .init = o_.init}),
      v_proj_(at / "v_proj", width, o_.key_heads * o_.head_width,
              {.bias = o_.bias || o_.qkv_bias, .init = o_.init}),
      o_proj_(at / "o_proj", heads * o_.head_width, width, {.bias = o_.bias, .init = o_.output_init}),
      norms_(query_key_norms(at, heads, o_)) {
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

// Scales the part of the scores that comes from the rotated elements by a².
Tensor GroupedAttention::magnified(const Tensor& k) const {
  const auto parts = split(k, {turning(o_), o_.head_width - turning(o_)}, -1);
  return concat({parts[0] * (o_.magnitude * o_.magnitude), parts[1]}, -1);
}

Tensor GroupedAttention::record(TensorArg x, const CallArgs& call) const {
  if (call.cache) call.cache->check(x);
  const CallArgs same{.mode = call.mode};
  const Tensor positions = o_.rotate ? positions_by_head(call, x) : Tensor();
  RopeOptions rotation = o_.rope;
  if (is_short_call(call, x, o_.short_length)) rotation.frequencies = o_.short_frequencies;
  const Tensor q = rotated(q_proj_(x, same), heads_, 0, positions, rotation);
  Tensor k = rotated(k_proj_(x, same), o_.key_heads, 1, positions, rotation);
  if (o_.magnitude != 1) k = magnified(k);
  const Tensor v = by_head(v_proj_(x, same), o_.key_heads);
  PagedAttentionOptions options{.softcap = o_.softcap};
  if (o_.scale != 0) options.scale = o_.scale;
  if (o_.window > 0) options.window_left = o_.window - 1;
  return o_proj_(attend(q, k, v, options, o_.dropout, call, path()),
                 {.mode = call.mode, .residual = call.residual});
}

LatentAttention::LatentAttention(const Path& at, std::int64_t width, std::int64_t heads, Options options)
    : Module(at),
      heads_(heads),
      o_(checked(at, options, width, heads)),
      q_(query_layers(at, width, heads, o_)),
      q_norm_(query_norm(at, o_)),
      kv_a_(at / "kv_a_proj_with_mqa", width, o_.latent + o_.rope_width, {.bias = o_.bias, .init = o_.init}),
      kv_norm_(at / "kv_a_layernorm", o_.latent, o_.eps),
      kv_b_(at / "kv_b_proj", o_.latent, heads * (o_.head_width + o_.value_width),
            {.bias = false, .init = o_.init}),
      o_proj_(at / "o_proj", heads * o_.value_width, width, {.bias = o_.bias, .init = o_.output_init}),
      query_rope_{query_rope(o_, false), query_rope(o_, true)},
      key_rope_{{.interleaved = o_.interleaved, .frequencies = pair_frequencies(o_)},
                {.interleaved = o_.interleaved, .frequencies = pair_frequencies(o_, true)}} {
  const Weight& weight = kv_b_.weight();
  at.setting(weight, "heads", heads);
  if (options.frequencies.empty())
    at.setting(weight, "theta", o_.theta);
  else
    at.setting(weight, "frequencies", o_.frequencies);
  if (o_.short_length > 0) {
    at.setting(weight, "short_frequencies", o_.short_frequencies);
    at.setting(weight, "short_length", o_.short_length);
  }
  if (!o_.interleaved) at.setting(weight, "interleaved", o_.interleaved);
  if (o_.magnitude != 1) at.setting(weight, "magnitude", o_.magnitude);
  if (options.scale != 0) at.setting(weight, "scale", o_.scale);
}

Tensor LatentAttention::queries(TensorArg x, const Tensor& positions, const RopeOptions& rotation,
                                Mode mode) const {
  const CallArgs same{.mode = mode};
  const Tensor first = q_[0](x, same);
  const Tensor q = by_head(q_norm_.empty() ? first : q_[1](q_norm_[0](first), same), heads_);
  if (o_.interleaved) return rope(q, positions, rotation);
  const auto parts = split(q, {o_.head_width, o_.rope_width}, -1);
  return concat({parts[0], rope(parts[1], positions, rotation)}, -1);
}

Tensor LatentAttention::record(TensorArg x, const CallArgs& call) const {
  if (call.cache) call.cache->check(x);
  const Tensor positions = positions_by_head(call, x);
  const std::size_t kind = is_short_call(call, x, o_.short_length) ? 1 : 0;
  const Tensor q = queries(x, positions, query_rope_[kind], call.mode);
  const auto a = split(kv_a_(x, {.mode = call.mode}), {o_.latent, o_.rope_width}, -1);
  const Tensor latent = kv_norm_(a[0]);  // Z [B, L, m]
  Tensor k_rope = rope(unsqueeze(a[1], 1), positions, key_rope_[kind]);
  if (o_.magnitude != 1) k_rope = k_rope * (o_.magnitude * o_.magnitude);  // a for queries, a for keys
  return o_proj_(
      call.cache ? absorbed(q, latent, k_rope, *call.cache) : expanded(q, latent, k_rope, call.mode),
      {.mode = call.mode, .residual = call.residual});
}

Tensor LatentAttention::expanded(const Tensor& q, const Tensor& latent, const Tensor& k_rope,
                                 Mode mode) const {
  const std::int64_t batch = latent.size(0), length = latent.size(1);
  // Uses the order [B, L, H, …], because its gradients are then views.
  const auto kv =
      split(kv_b_(latent, {.mode = mode}).view({batch, length, heads_, o_.head_width + o_.value_width}),
            {o_.head_width, o_.value_width}, -1);
  const Tensor shared = expand(transpose(k_rope, 1, 2), {batch, length, heads_, o_.rope_width});
  const Tensor k = concat({kv[0], shared}, -1);
  return attend(q, transpose(k, 1, 2), transpose(kv[1], 1, 2), {.scale = o_.scale}, o_.dropout,
                {.mode = mode}, path());
}

Tensor LatentAttention::absorbed(const Tensor& q, const Tensor& latent, const Tensor& k_rope,
                                 CacheCall& cache) const {
  const std::int64_t width = o_.head_width + o_.value_width;
  const std::vector<std::int64_t> keys_values{o_.head_width, o_.value_width};
  const auto u = split(kv_b_.weight().tensor(q).view({heads_, width, o_.latent}), keys_values,
                       1);  // for keys [H, d, m] and values [H, dv, m]
  const auto parts = split(q, {o_.head_width, o_.rope_width}, -1);
  Tensor queries = matmul(parts[0], u[0]);  // [B, H, L, m]
  std::vector<Tensor> low;  // for an adapter: B's rows [H, d, r] and [H, dv, r], and s·A [r, m]
  if (const LowRank* adapter = kv_b_.adapter()) {
    const Tensor b = adapter->rows_of_b(q, heads_ * width);
    low = split(reshape(b, {heads_, width, b.size(1)}), keys_values, 1);
    low.push_back(adapter->a.tensor(q) * adapter->scale);
    queries = queries + cast(matmul(matmul(parts[0], low[0]), low[2]), queries.dtype());
  }
  const Tensor o = cache.attend(path() + ".latent", concat({queries, parts[1]}, -1),
                                concat({unsqueeze(latent, 1), k_rope}, -1), o_.latent,
                                {.scale = o_.scale});  // [B, H, L, m]
  Tensor values = matmul(o, transpose(u[1], 1, 2));    // [B, H, L, dv]
  if (!low.empty())
    values =
        values + cast(matmul(matmul(o, transpose(low[2], 0, 1)), transpose(low[1], 1, 2)), values.dtype());
  return reshape(transpose(values, 1, 2), {q.size(0), q.size(2), heads_ * o_.value_width});
}

}  // namespace tg::nn
