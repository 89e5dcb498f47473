#include <tilegrad/nn/layers/latent_attention.h>

#include <cmath>
#include <limits>

#include <tilegrad/ops/ops.h>

namespace tg::nn {

namespace {

using detail::by_head;

LatentAttention::Options checked(const Path& at, LatentAttention::Options o, std::int64_t width,
                                 std::int64_t heads) {
  if (o.head_width == 0) o.head_width = detail::head_width(at, width, heads);
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

// q_proj, or q_a_proj and q_b_proj.
std::vector<Linear> query_layers(const Path& at, std::int64_t width, std::int64_t heads,
                                 const LatentAttention::Options& o) {
  const std::int64_t queries = detail::product(heads, o.head_width + o.rope_width);
  const Linear::Options plain{.bias = false, .init = o.init};
  if (o.query_latent == 0) return {Linear(at / "q_proj", width, queries, plain)};
  return {Linear(at / "q_a_proj", width, o.query_latent, {.bias = o.bias, .init = o.init}),
          Linear(at / "q_b_proj", o.query_latent, queries, plain)};
}

std::vector<RmsNorm> query_norm(const Path& at, const LatentAttention::Options& o) {
  if (o.query_latent == 0) return {};
  return {RmsNorm(at / "q_a_layernorm", o.query_latent, o.eps)};
}

// Made after the weights, whose file says first if a width is a lie.
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
  const Call same{.mode = mode};
  const Tensor first = q_[0](x, same);
  const Tensor q = by_head(q_norm_.empty() ? first : q_[1](q_norm_[0](first), same), heads_);
  if (o_.interleaved) return rope(q, positions, rotation);
  const auto parts = split(q, {o_.head_width, o_.rope_width}, -1);
  return concat({parts[0], rope(parts[1], positions, rotation)}, -1);
}

Tensor LatentAttention::record(TensorArg x, const Call& call) const {
  if (call.cache) call.cache->check(x);
  const Tensor positions = detail::positions_by_head(call, x);
  const std::size_t kind = o_.short_length > 0 && detail::is_short_call(call, x, o_.short_length) ? 1 : 0;
  const Tensor q = queries(x, positions, query_rope_[kind], call.mode);
  const auto a = split(kv_a_(x, {.mode = call.mode}), {o_.latent, o_.rope_width}, -1);
  const Tensor latent = kv_norm_(a[0]);  // Z [B, L, m]
  Tensor k_rope = rope(unsqueeze(a[1], 1), positions, key_rope_[kind]);
  if (o_.magnitude != 1) k_rope = k_rope * (o_.magnitude * o_.magnitude);  // of both sides of the scores
  return o_proj_(
      call.cache ? absorbed(q, latent, k_rope, *call.cache) : expanded(q, latent, k_rope, call.mode),
      {.mode = call.mode, .residual = call.residual});
}

Tensor LatentAttention::expanded(const Tensor& q, const Tensor& latent, const Tensor& k_rope,
                                 Mode mode) const {
  const std::int64_t batch = latent.size(0), length = latent.size(1);
  // In [B, L, H, …] order, in which gradients flow back as views.
  const auto kv =
      split(kv_b_(latent, {.mode = mode}).view({batch, length, heads_, o_.head_width + o_.value_width}),
            {o_.head_width, o_.value_width}, -1);
  const Tensor shared = expand(transpose(k_rope, 1, 2), {batch, length, heads_, o_.rope_width});
  const Tensor k = concat({kv[0], shared}, -1);
  AttentionOptions options{.scale = o_.scale, .causal = true};
  if (mode == Mode::train) options.dropout = o_.dropout;
  return detail::attended(q, transpose(k, 1, 2), transpose(kv[1], 1, 2), options);
}

Tensor LatentAttention::absorbed(const Tensor& q, const Tensor& latent, const Tensor& k_rope,
                                 CacheCall& cache) const {
  const std::int64_t width = o_.head_width + o_.value_width;
  const std::vector<std::int64_t> keys_values{o_.head_width, o_.value_width};
  const auto u = split(kv_b_.weight().tensor(q).view({heads_, width, o_.latent}), keys_values,
                       1);  // [H, d, m] and [H, dv, m]
  const auto parts = split(q, {o_.head_width, o_.rope_width}, -1);
  Tensor queries = matmul(parts[0], u[0]);  // [B, H, L, m]
  std::vector<Tensor> low;  // of an adapter: B's rows [H, d, r] and [H, dv, r], and s·A [r, m]
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
