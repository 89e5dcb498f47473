// flash_attn and its backward: checks, layouts, gradient and samples. standard_attn.cpp computes the same
// function with simpler ops.
#include <tilegrad/ops/flash_attn.h>

#include <algorithm>
#include <cmath>

#include "ops/attention_call.h"
#include "ops/common.h"

namespace tg {

namespace {

using Operands = detail::AttentionOperands<Operand>;
using detail::is_last_axis_contiguous, detail::last_axis_contiguous, detail::require_shape;

void check_numbers(const AttentionAttrs& a) {
  check_options({}, {{"scale", a.scale, Range::finite()},
                     {"softcap", a.softcap, Range::softcap(a.softcap)},
                     {"dropout", a.dropout, Range::from_below(0, 1)},
                     {"window_left", a.window_left, Range::whole_from(-1)},
                     {"window_right", a.window_right, Range::whole_from(-1)}});
  if (a.top_left && !a.causal) throw Error("top-left alignment needs causal = true");
}

void check_sequences(const Operands& x, const AttentionAttrs& a) {
  if (a.packed && a.has_lengths) throw Error("cu_seqlens and kv_lengths exclude each other");
  if (a.packed) {
    if (x.cu_q->dtype != i32 || x.cu_k->dtype != i32) throw DTypeError("cu_seqlens must be i32");
    if (x.q->shape()[0] != 1) throw ShapeError("packed sequences (cu_seqlens) need a batch of 1");
    const Shape& n = x.cu_q->shape();
    if (n.size() != 1 || n[0] < 1)
      throw ShapeError("cu_seqlens_q is " + n.text() + ", expected [sequences + 1]");
    require_shape("cu_seqlens_k", *x.cu_k, n);
  }
  if (a.has_lengths) {
    detail::require_index(x.lengths->dtype);
    require_shape("kv_lengths", *x.lengths, {x.q->shape()[0]});
  }
}

// The checks of operands that both ops share.
void check_attention_operands(const Operands& x, const AttentionAttrs& a) {
  const DType dtype = x.q->dtype;
  detail::require_float(dtype);
  for (const Operand* t : {x.q, x.k, x.v}) {
    if (t->layout.rank() != 4) throw ShapeError("needs q [B, H, L, d], k [B, Hk, T, d] and v [B, Hk, T, dv]");
    if (t->dtype != dtype) throw DTypeError("q, k and v differ in dtype");
    if (!is_last_axis_contiguous(t->layout)) throw ShapeError("needs contiguous last axes");
  }
  const Shape &q = x.q->shape(), &k = x.k->shape(), &v = x.v->shape();
  for (const Shape& n : {q, v})
    if (std::any_of(n.begin() + 1, n.end(), [](std::int64_t e) { return e > INT32_MAX; }))
      throw ShapeError("heads, lengths and head sizes must be below 2^31");
  if (q[3] < 1) throw ShapeError("the head size d must be at least 1");
  if (k[3] != q[3]) throw ShapeError("q and k differ in head size");
  if (k[0] != q[0] || v[0] != q[0]) throw ShapeError("q, k and v differ in batch size");
  if (v[1] != k[1] || v[2] != k[2]) throw ShapeError("k and v differ in heads or length");
  detail::check_heads(q[1], k[1]);
  check_numbers(a);
  if (x.bias) {
    if (x.bias->dtype != dtype)
      throw DTypeError("the bias is " + std::string(name_of(x.bias->dtype)) + ", expected " +
                       std::string(name_of(dtype)) + ", or bool for a mask (true: visible)");
    const Shape &s = x.bias->shape(), full{q[0], q[1], q[2], k[2]};
    for (int i = 0; i < 4; ++i)
      if (s.size() != 4 || (s[i] != 1 && s[i] != full[i]))
        throw ShapeError("the bias " + s.text() + " does not broadcast to " + full.text());
  }
  if (x.sink) detail::check_sink(*x.sink, *x.q);
  check_sequences(x, a);
  for (const Operand* t : {x.lse, x.z_lse, x.sink, x.cu_q, x.cu_k, x.lengths})
    if (t && !t->layout.is_contiguous()) throw ShapeError("needs contiguous statistics, sinks and lengths");
  for (const Operand* t : {x.lse, x.z_lse})
    if (t && t->dtype != compute_type(dtype)) throw DTypeError("needs ξ in the compute type");
  if (x.rng) detail::require_rng(*x.rng);
  if (a.expression) detail::check_captured(*a.expression, dtype, x.captured);
}

void check_count(std::span<const Operand> in, const AttentionAttrs& a) {
  detail::require_operands(in, std::size_t{3} + (a.backward ? 3 : 0) + a.has_z_lse + a.has_bias + a.has_sink +
                                   (a.packed ? 2 : 0) + a.has_lengths + (a.dropout > 0) +
                                   static_cast<std::size_t>(a.captured()));
}

std::vector<OutSpec> infer_forward(std::span<const Operand> in, const Attrs& attrs) {
  const auto& a = attrs.as<AttentionAttrs>();
  check_count(in, a);
  if (a.backward) throw Error("got attributes of its backward");
  const Operands x(in, a);
  check_attention_operands(x, a);
  const Shape& q = x.q->shape();
  const Layout o = permute(row_major({q[0], q[2], q[1], x.v->shape()[3]}), {0, 2, 1, 3});
  const OutSpec statistic{compute_type(x.q->dtype), row_major({q[0], q[1], q[2]})};
  if (a.has_lse_rest) return {{x.q->dtype, o}, statistic, statistic};
  return {{x.q->dtype, o}, statistic};
}

// The layout of a gradient. Its axes have the same order in memory as the axes of the tensor. If the tensor
// is a view of a projection, the inverse view of the gradient then needs no copy. Axes with stride 0 are
// ignored.
Layout gradient_layout(const Layout& l) {
  const Layout like = dense_like(l.shape, l);
  return is_last_axis_contiguous(like) ? like : row_major(l.shape);
}

std::vector<OutSpec> infer_backward(std::span<const Operand> in, const Attrs& attrs) {
  const auto& a = attrs.as<AttentionAttrs>();
  check_count(in, a);
  if (!a.backward || (a.needs_z_bias && !a.has_bias) || (a.needs_z_sink && !a.has_sink) ||
      a.needs_z_captured < 0 || a.needs_z_captured >> a.captured() != 0)
    throw Error("got attributes that are not of a backward");
  const Operands x(in, a);
  check_attention_operands(x, a);
  const Shape &q = x.q->shape(), out{q[0], q[1], q[2], x.v->shape()[3]}, rows{q[0], q[1], q[2]};
  require_shape("o", *x.o, out);
  require_shape("z_o", *x.z_o, out);
  require_shape("lse", *x.lse, rows);
  if (x.z_lse) require_shape("z_lse", *x.z_lse, rows);
  if (x.o->dtype != x.q->dtype || x.z_o->dtype != x.q->dtype)
    throw DTypeError("q, o and z_o differ in dtype");
  std::vector<OutSpec> outs;
  for (const Operand* t : {x.q, x.k, x.v}) outs.push_back({t->dtype, gradient_layout(t->layout)});
  if (a.needs_z_bias) outs.push_back({x.bias->dtype, row_major(x.bias->shape())});
  if (a.needs_z_sink) outs.push_back({x.sink->dtype, row_major(x.sink->shape())});
  for (int c = 0; c < a.captured(); ++c)
    if (a.needs_z_captured >> c & 1) outs.push_back({x.captured[c].dtype, row_major(x.captured[c].shape())});
  return outs;
}

std::size_t index_of(const Tensor* x, std::span<const Tensor> in) {
  return static_cast<std::size_t>(x - in.data());
}

Tensors attention_gradient(const Backprop& g) {
  AttentionAttrs a = g.attrs.as<AttentionAttrs>();
  const detail::AttentionOperands<Tensor> x(g.in, a);
  const Tensor &o = g.out[0], &lse = g.out[1];
  Graph& graph = o.graph();
  Tensor z_o = g.z[0];
  if (!z_o.defined()) z_o = expand(full(graph, {1, 1, 1, o.size(3)}, 0, o.dtype()), o.shape());
  Tensors in{*x.q, *x.k, *x.v, o, lse, last_axis_contiguous(z_o)};
  if (g.z[1].defined()) in.push_back(contiguous(g.z[1]));
  in.insert(in.end(), g.in.begin() + 3, g.in.end());
  a.backward = true, a.has_lse_rest = false;
  a.has_z_lse = g.z[1].defined();
  a.needs_z_bias = x.bias && g.needed[index_of(x.bias, g.in)];
  a.needs_z_sink = x.sink && g.needed[index_of(x.sink, g.in)];
  a.needs_z_captured = 0;
  for (int c = 0; c < a.captured(); ++c)
    if (is_float(x.captured[c].dtype()) && g.needed[index_of(x.captured + c, g.in)])
      a.needs_z_captured |= std::int64_t{1} << c;
  const Tensors z = graph.record(flash_attn_backward_op, in, a, Where::current());
  Tensors out(g.in.size());
  std::copy_n(z.begin(), 3, out.begin());
  auto more = z.begin() + 3;
  if (a.needs_z_bias) out[index_of(x.bias, g.in)] = *more++;
  if (a.needs_z_sink) out[index_of(x.sink, g.in)] = *more++;
  for (int c = 0; c < a.captured(); ++c)
    if (a.needs_z_captured >> c & 1) out[index_of(x.captured + c, g.in)] = *more++;
  return out;
}

// The number of pairs of a query and a visible key in one head. Boundaries and lengths are not known here, so
// sequences are assumed to be full.
double visible_pairs(std::int64_t L, std::int64_t T, const AttentionAttrs& a) {
  AttentionCall x;
  x.L = static_cast<int>(L), x.T = static_cast<int>(T);
  set_mask(x, a);
  double pairs = 0;
  for (int i = 0; i < x.L; ++i) {
    const KeyRange keys = keys_visible_to(x, 0, i);
    pairs += keys.to - keys.from;
  }
  return pairs;
}

// Two GEMMs in the forward (over d and dv), five in the backward (three over d, two over dv).
Cost attention_cost(std::span<const Operand> in, std::span<const Operand>, const Attrs& attrs) {
  const auto& a = attrs.as<AttentionAttrs>();
  const Shape &q = in[0].shape(), &v = in[2].shape();
  const double d = static_cast<double>(q[3]), dv = static_cast<double>(v[3]);
  return {.flops = 2 * static_cast<double>(q[0] * q[1]) * visible_pairs(q[2], v[2], a) *
                   (a.backward ? 3 * d + 2 * dv : d + dv)};
}

// Counts the roundings of one result:
// - A score is a sum over d products, then scaled, capped and biased.
// - The exponential, the sum over keys and a division follow. A kernel may rescale the partial sum at each
//   key, so each key counts twice.
// - The backward also computes z_P, a sum over dv products, and z_s from z_P by three operations. One more
//   sum follows. It is the longest of three sums. They are over the keys, over all queries that read a key
//   head, and over all scores that read one element of a bias, a sink or a captured tensor.
double attention_roundings(std::span<const Operand> in, std::span<const Operand> out, const Attrs& attrs) {
  const auto& a = attrs.as<AttentionAttrs>();
  const detail::AttentionOperands<Operand> x(in, a);
  const Shape &q = x.q->shape(), &k = x.k->shape();
  const auto d = static_cast<double>(q[3]), dv = static_cast<double>(x.v->shape()[3]);
  const auto L = static_cast<double>(q[2]), T = static_cast<double>(k[2]);
  const double of_score = 4 + (a.expression ? static_cast<double>(a.expression->code.size()) : 0);
  constexpr double of_probability = 3;
  if (!a.backward) return d + of_score + 2 * T + of_probability;
  const double heads = static_cast<double>(q[1]) / static_cast<double>(std::max<std::int64_t>(1, k[1])),
               scores = static_cast<double>(q[0] * q[1]) * L * T;
  double terms = std::max(T, heads * L);
  for (std::size_t i = 3; i < out.size(); ++i)
    terms = std::max(terms, scores / static_cast<double>(std::max<std::int64_t>(1, out[i].layout.numel())));
  if (a.needs_z_captured != 0) terms = scores;  // all pairs may read one element
  return d + of_score + of_probability + dv + 3 + terms;
}

// The operands and attributes of a call.
struct Prepared {
  Tensors in;
  AttentionAttrs attrs;
};

// 0 if `mask` is true, otherwise −∞.
Tensor visible_only(const Tensor& mask, DType dtype) {
  const Tensor zero = full(mask.graph(), {1, 1, 1, 1}, 0, is_float(dtype) ? dtype : f32);
  return where(mask, zero, -INFINITY);
}

Prepared prepared(const Op& op, const TensorArg& q, const TensorArg& k, const TensorArg& v,
                  const AttentionOptions& o) {
  if (o.cu_seqlens_k.defined() && !o.cu_seqlens_q.defined())
    throw Error(in_context("[" + op.name + "] cu_seqlens_k is given without cu_seqlens_q", q.where()));
  const Tensor& query = q.tensor();
  Graph& graph = query.graph();
  Prepared p{{},
             {.scale = o.scale.value_or(detail::default_scale(query)),
              .causal = o.causal,
              .top_left = o.alignment == AttentionOptions::top_left,
              .window_left = o.window_left,
              .window_right = o.window_right,
              .softcap = o.softcap,
              .dropout = o.dropout,
              .has_bias = o.bias.defined(),
              .has_sink = o.sink.defined(),
              .packed = o.cu_seqlens_q.defined(),
              .has_lengths = o.kv_lengths.defined(),
              .nondeterministic = o.nondeterministic,
              .kernels = o.kernels}};
  AttentionAttrs& a = p.attrs;
  for (const TensorArg* x : {&q, &k, &v}) p.in.push_back(last_axis_contiguous(x->tensor()));
  if (a.has_bias) {
    Shape four = o.bias.shape();
    while (four.size() < 4) four.insert(0, 1);
    const Tensor bias = view(o.bias, four);
    p.in.push_back(bias.dtype() == boolean ? visible_only(bias, query.dtype())
                                           : detail::cast_float(bias, query.dtype()));
  }
  if (a.has_sink) p.in.push_back(contiguous(detail::cast_float(o.sink, query.dtype())));
  if (a.packed) {
    p.in.push_back(contiguous(o.cu_seqlens_q));
    p.in.push_back(o.cu_seqlens_k.defined() ? contiguous(o.cu_seqlens_k) : p.in.back());
  }
  if (a.has_lengths) p.in.push_back(contiguous(o.kv_lengths));
  if (a.dropout > 0) p.in.push_back(graph.rng());
  a.stream = a.dropout > 0 ? static_cast<std::int64_t>(graph.nodes().size()) : 0;
  if (o.score || o.mask) {
    detail::PlainAttention plain{a.causal, a.top_left, a.window_left, a.window_right, a.softcap};
    a.expression =
        detail::record_expression(o.score, o.mask, compute_type(query.dtype()), p.in, plain, q.where());
    a.causal = plain.causal, a.softcap = plain.softcap;
    a.window_left = plain.window_left, a.window_right = plain.window_right;
  }
  return p;
}

std::vector<Sample> forward_samples();
std::vector<Sample> backward_samples();

// This op is recorded only because of its checks. Their messages then contain the name of the function that
// the user called. Nothing reads the results, so the op never runs.
const Op& standard_attn_checks =
    *new Op{.name = "standard_attn",
            .infer = infer_forward,
            .not_differentiable = "standard_attn consists of other ops, which are differentiable"};

}  // namespace

const Op& flash_attn_op = *define_op(
    {.name = "flash_attn",
     .doc =
         "q [B, H, L, d], k [B, Hk, T, d], v [B, Hk, T, dv], bias?, sink?, … → o [B, H, L, dv], ξ [B, H, L]: "
         "A = softcap(scale·q·kᵀ) + bias, P = exp(A − ξ), ξ = log(Σ exp A + exp sink), o = dropout(P)·v",
     .infer = infer_forward,
     .vjp = attention_gradient,
     .decompose = detail::decompose_attention,
     .samples = forward_samples,
     .cost = attention_cost,
     .roundings = attention_roundings,
     .recompute = Recompute::costly});

const Op& flash_attn_backward_op =
    *define_op({.name = "flash_attn_backward",
                .doc = "q, k, v, o, ξ, z_o, z_ξ?, bias?, sink?, … → z_q, z_k, z_v, z_bias?, z_sink?: without "
                       "softcap and dropout, P = exp(A − ξ) ≤ 1 (in f32 on a GPU no number beyond 2⁸; exp A "
                       "⊘ exp(A).sum if abs(ξ) > 1024, in bf16 and f16 8192), u = (o ⊛ z_o).sum − z_ξ, z_s = "
                       "P ⊛ (z_o·vᵀ − u), z_q = scale·z_s·k, z_k = scale·z_sᵀ·q, z_v = Pᵀ·z_o",
                .infer = infer_backward,
                .decompose = detail::decompose_attention_backward,
                .samples = backward_samples,
                .cost = attention_cost,
                .roundings = attention_roundings,
                .strided_results = true});

void detail::check_heads(std::int64_t heads, std::int64_t key_heads) {
  if (key_heads == 0 ? heads != 0 : heads % key_heads != 0)
    throw ShapeError(std::to_string(heads) + " query heads are not a multiple of " +
                     std::to_string(key_heads) + " key heads");
}

void detail::check_sink(const Operand& sink, const Operand& q) {
  if (sink.dtype != q.dtype)
    throw DTypeError("the sink is " + std::string(name_of(sink.dtype)) + ", expected " +
                     std::string(name_of(q.dtype)));
  require_shape("sink", sink, {q.shape()[1]});
}

double detail::default_scale(const Tensor& q) {
  const std::int64_t d = q.rank() == 0 ? 1 : q.shape().back();
  return d > 0 ? 1 / std::sqrt(static_cast<double>(d)) : 1;
}

const AttentionAttrs* attention_of(const Op& op, const Attrs& attrs) {
  return &op == &flash_attn_op ? &attrs.as<AttentionAttrs>() : nullptr;
}

const AttentionAttrs* attention_backward_of(const Op& op, const Attrs& attrs) {
  return &op == &flash_attn_backward_op ? &attrs.as<AttentionAttrs>() : nullptr;
}

AttentionResult flash_attn(TensorArg q, TensorArg k, TensorArg v, const AttentionOptions& options) {
  const Scope scope(q);
  const Prepared p = prepared(flash_attn_op, q, k, v, options);
  const Tensors out = q.tensor().graph().record(flash_attn_op, p.in, p.attrs, q.where());
  return {out[0], out[1]};
}

detail::SplitAttentionResult detail::flash_attn_with_rest(TensorArg q, TensorArg k, TensorArg v,
                                                          const AttentionOptions& options) {
  const Scope scope(q);
  Prepared p = prepared(flash_attn_op, q, k, v, options);
  p.attrs.has_lse_rest = true;
  const Tensors out = q.tensor().graph().record(flash_attn_op, p.in, p.attrs, q.where());
  return {out[0], out[1], out[2]};
}

AttentionResult standard_attn(TensorArg q, TensorArg k, TensorArg v, const AttentionOptions& options) {
  const Scope scope(q);
  const Prepared p = prepared(standard_attn_checks, q, k, v, options);
  q.tensor().graph().record(standard_attn_checks, p.in, p.attrs, q.where());
  const Tensors out = detail::decompose_attention(p.in, p.attrs);
  return {out[0], out[1]};
}

namespace {

// A variant of a call. It has sizes, options that depend on the additional inputs, and a flag that ξ is
// finite for every query.
struct Variant {
  std::string name;
  std::int64_t B, H, Hk, L, T, d, dv;
  std::vector<SampleInput> more;
  std::function<AttentionOptions(std::span<const Tensor> more)> options;
  bool every_query_sees = true, has_expression = false;
};

Tensor numbers(const Tensor& like, const std::vector<std::int32_t>& n) {
  return like.graph().constant(Array::of(n));
}

std::vector<Variant> variants() {
  using O = AttentionOptions;
  using More = std::span<const Tensor>;
  const auto fixed = [](const O& o) { return [o](More) { return o; }; };
  const auto packed = [](More m) {
    return O{.causal = true,
             .cu_seqlens_q = numbers(m[0], {0, 4, 4, 9}),
             .cu_seqlens_k = numbers(m[0], {0, 4, 5, 11})};
  };
  const auto lengths = [](More m) { return O{.causal = true, .kv_lengths = m[0]}; };
  const auto all_at_once = [](More m) {
    return O{.causal = true,
             .window_left = 4,
             .bias = m[0],
             .softcap = 2,
             .sink = m[1],
             .kv_lengths = m[2],
             .dropout = 0.2};
  };
  return {
      {"plain", 2, 2, 2, 5, 7, 4, 4, {}, fixed({})},
      {"causal", 1, 2, 2, 6, 6, 4, 4, {}, fixed({.causal = true})},
      {"causal bottom-right", 1, 2, 1, 4, 7, 4, 4, {}, fixed({.causal = true})},
      {"causal, queries that see nothing", 1, 2, 1, 7, 4, 4, 4, {}, fixed({.causal = true}), false},
      {"causal top-left", 1, 2, 2, 5, 7, 4, 4, {}, fixed({.causal = true, .alignment = O::top_left})},
      {"grouped, dv other than d", 2, 4, 2, 5, 6, 4, 3, {}, fixed({.scale = 0.3})},
      {"one key head", 1, 3, 1, 5, 6, 4, 5, {}, fixed({.causal = true})},
      {"window", 1, 2, 2, 8, 8, 4, 4, {}, fixed({.window_left = 2, .window_right = 1})},
      {"causal window", 1, 2, 1, 6, 8, 4, 4, {}, fixed({.causal = true, .window_left = 3})},
      {"softcap", 1, 2, 2, 5, 6, 4, 4, {}, fixed({.causal = false, .softcap = 1.5})},
      {"bias", 2, 2, 1, 5, 6, 4, 4, {{{2, 2, 5, 6}}}, [](More m) { return O{.bias = m[0]}; }},
      {"broadcast bias", 2, 2, 2, 5, 6, 4, 4, {{{2, 1, 6}}}, [](More m) { return O{.bias = m[0]}; }},
      {"sink", 1, 4, 2, 5, 6, 4, 4, {{{4}}}, [](More m) { return O{.causal = true, .sink = m[0]}; }},
      {"packed", 1, 2, 1, 9, 11, 4, 4, {{{9}}}, packed},
      {"lengths", 3, 2, 2, 3, 8, 4, 4, {{{3}, {Fill::index, 3, 9}, i32}}, lengths},
      {"dropout", 1, 2, 1, 6, 7, 4, 4, {}, fixed({.causal = true, .dropout = 0.3})},
      {"all at once",
       2,
       4,
       2,
       6,
       9,
       5,
       3,
       {{{4, 6, 1}}, {{4}}, {{2}, {Fill::index, 6, 10}, i64}},
       all_at_once},
      // Head sizes of at least 16 bytes, without options. Tensor core kernels and Hopper's kernels support
      // them.
      {"heads of 8", 2, 4, 2, 5, 7, 8, 8, {}, fixed({.causal = true})},
      {"no keys", 1, 2, 2, 3, 0, 4, 4, {}, fixed({}), false},
      {"no queries", 1, 2, 2, 0, 3, 4, 4, {}, fixed({})},
  };
}

// Calls with score and mask functions.
std::vector<Variant> expression_variants() {
  using O = AttentionOptions;
  using More = std::span<const Tensor>;
  using X = const ScoreAt&;
  const auto alibi = [](More m) {
    return O{.causal = true, .score = [m](X x) { return x.score + x.at(m[0], {x.h}) * (x.t - x.i); }};
  };
  const auto table = [](More m) {
    return O{.score = [m](X x) { return x.score + x.at(m[0], {x.h, clamp(x.t - x.i, -2, 2) + 2}); }};
  };
  const auto pair_bias = [](More m) {
    return O{.score = [m](X x) { return x.score + x.at(m[0], {x.b, x.h, x.i, x.t}); }};
  };
  const auto forgetting = [](More m) {
    return O{.causal = true, .score = [m](X x) {
               return x.score + x.at(m[0], {x.b, x.h, x.i}) - x.at(m[0], {x.b, x.h, x.t});
             }};
  };
  const auto gate = [](More m) {
    return O{.score = [m](X x) { return x.score * sigmoid(x.at(m[0], {x.h}) * x.score); }};
  };
  const auto documents = [](More m) {
    return O{.causal = true, .mask = [m](X x) {
               return equal(x.at(m[0], {x.b, x.i}), x.at(m[0], {x.b, x.t}));
             }};
  };
  const auto packed_expression = [](More m) {
    return O{.cu_seqlens_q = numbers(m[0], {0, 4, 4, 9}),
             .cu_seqlens_k = numbers(m[0], {0, 4, 5, 11}),
             .dropout = 0.3,
             .score = [m](X x) { return x.score * x.at(m[0], {x.t}) + x.at(m[0], {x.i + 1}); }};
  };
  const auto lengths_expression = [](More m) {
    return O{.sink = m[0],
             .kv_lengths = m[2],
             .score =
                 [m](X x) {
                   return x.score + x.at(m[1], {x.h, x.t}) * tanh(x.score) + x.i / 8;
                 },
             .mask = [](X x) { return not_equal(remainder(x.i - x.t, 3), 1); }};
  };
  const auto every_option = [](More m) {
    return O{.causal = true,
             .window_left = 5,
             .bias = m[0],
             .softcap = 2,
             .sink = m[1],
             .kv_lengths = m[2],
             .dropout = 0.2,
             .score =
                 [m](X x) {
                   return x.score * x.at(m[3], {x.h}) + x.at(m[4], {x.b, x.i - x.t});
                 },
             .mask = [](X x) { return logical_or(less(x.t, 1), less(x.i - x.t, 5)); }};
  };
  return {
      {"score: ALiBi", 2, 4, 2, 5, 6, 4, 4, {{{4}}}, alibi},
      {"score: clipped table", 1, 2, 1, 5, 6, 4, 4, {{{2, 5}}}, table},
      {"score: pair bias", 2, 2, 2, 4, 4, 4, 4, {{{2, 2, 4, 4}}}, pair_bias},
      {"score: two uses of a tensor", 2, 2, 1, 4, 5, 4, 4, {{{2, 2, 5}}}, forgetting},
      {"score: gate", 1, 2, 1, 4, 5, 4, 3, {{{2}}}, gate},
      {"mask: documents", 2, 2, 1, 6, 6, 4, 4, {{{2, 6}, {Fill::index, 0, 3}, i32}}, documents},
      {"score, packed, dropout", 1, 2, 1, 9, 11, 4, 4, {{{7}}}, packed_expression},
      {"score and mask, lengths, sink",
       2,
       2,
       2,
       4,
       7,
       4,
       4,
       {{{2}}, {{2, 7}}, {{2}, {Fill::index, 4, 8}, i64}},
       lengths_expression},
      {"score and mask, every option",
       2,
       4,
       2,
       6,
       9,
       5,
       3,
       {{{4, 6, 1}}, {{4}}, {{2}, {Fill::index, 6, 10}, i32}, {{4}}, {{2, 9}}},
       every_option},
  };
}

// Combinations of options, because a kernel that handles each option correctly may fail for two of them.
// Every mask boundary is combined with every kind of sequence, and each pair of options is in at least one
// row.
struct Together {
  enum { none, right, bottom, top } end;
  enum { full, lengths, packed } keys;
  bool window_left, sink, bias, softcap, dropout;

  std::string name() const {
    static const char* const ends[] = {"", "window_right", "causal", "top_left"};
    static const char* const kinds[] = {"", "lengths", "packed"};
    std::string s;
    for (const char* word : {ends[end], kinds[keys], window_left ? "window_left" : "", sink ? "sink" : "",
                             bias ? "bias" : "", softcap ? "softcap" : "", dropout ? "dropout" : ""})
      if (*word != '\0') s += (s.empty() ? "" : " + ") + std::string(word);
    return s;
  }

  Variant variant() const {
    const bool one = keys == packed;  // sequences of 3 and 4 queries with 4 and 5 keys
    Variant v{name(), one ? 1 : 2, 2, 1, one ? 7 : 4, one ? 9 : 6, 3, 2, {}, {}};
    if (bias) v.more.push_back({{v.H, v.L, v.T}});
    if (sink) v.more.push_back({{v.H}});
    if (keys == lengths) v.more.push_back({{v.B}, {Fill::index, 4, 7}, i32});
    if (one && v.more.empty())
      v.more.push_back({{1}});  // creates the graph in which the boundaries are recorded
    v.options = [row = *this](std::span<const Tensor> more) { return row.options(more); };
    return v;
  }

  AttentionOptions options(std::span<const Tensor> more) const {
    std::size_t next = 0;
    AttentionOptions o{.causal = end == bottom || end == top};
    if (end == top) o.alignment = AttentionOptions::top_left;
    if (end == right) o.window_right = 1;
    if (window_left) o.window_left = 2;
    if (softcap) o.softcap = 1.5;
    if (dropout) o.dropout = 0.3;
    if (bias) o.bias = more[next++];
    if (sink) o.sink = more[next++];
    if (keys == lengths) o.kv_lengths = more[next++];
    if (keys == packed) {
      o.cu_seqlens_q = numbers(more[0], {0, 3, 7});
      o.cu_seqlens_k = numbers(more[0], {0, 4, 9});
    }
    return o;
  }
};

constexpr Together together[] = {
    {Together::none, Together::full, false, true, true, false, false},
    {Together::none, Together::lengths, false, true, false, true, true},
    {Together::none, Together::packed, true, false, false, false, false},
    {Together::right, Together::full, false, true, false, true, true},
    {Together::right, Together::lengths, false, false, false, false, true},
    {Together::right, Together::packed, true, true, true, false, false},
    {Together::bottom, Together::full, true, true, true, false, true},
    {Together::bottom, Together::lengths, true, true, false, true, false},
    {Together::bottom, Together::packed, false, false, true, true, false},
    {Together::top, Together::full, false, false, false, true, false},
    {Together::top, Together::lengths, false, false, true, true, true},
    {Together::top, Together::packed, true, true, false, false, true},
};

std::vector<Variant> all_variants() {
  std::vector<Variant> all = variants();
  for (Variant v : expression_variants()) {
    v.has_expression = true;
    all.push_back(v);
  }
  for (const Together& row : together) all.push_back(row.variant());
  return all;
}

std::vector<SampleInput> inputs_of(const Variant& c) {
  return {{{c.B, c.H, c.L, c.d}}, {{c.B, c.Hk, c.T, c.d}}, {{c.B, c.Hk, c.T, c.dv}}};
}

std::vector<Sample> forward_samples() {
  std::vector<Sample> out;
  for (const Variant& c : all_variants()) {
    std::vector<SampleInput> inputs = inputs_of(c);
    inputs.insert(inputs.end(), c.more.begin(), c.more.end());
    out.push_back({c.name, inputs, [c](std::span<const Tensor> x) {
                     const auto [o, lse] = flash_attn(x[0], x[1], x[2], c.options(x.subspan(3)));
                     return c.every_query_sees ? Tensors{o, lse} : Tensors{o};
                   }});
    out.back().cpu_only = c.has_expression;
  }
  return out;
}

// Here o and ξ are independent inputs, not results of the forward. ξ must not be far below a score, because P
// ≤ 1.
std::vector<Sample> backward_samples() {
  std::vector<Sample> out;
  for (const Variant& c : all_variants()) {
    std::vector<SampleInput> inputs = inputs_of(c);
    const Shape o{c.B, c.H, c.L, c.dv}, lse{c.B, c.H, c.L};
    inputs.insert(inputs.end(), {{o}, {lse, {Fill::uniform, 6, 8}}, {o}, {lse}});
    inputs.insert(inputs.end(), c.more.begin(), c.more.end());
    out.push_back({c.name, inputs, [c](std::span<const Tensor> x) {
                     Prepared p = prepared(flash_attn_backward_op, x[0], x[1], x[2], c.options(x.subspan(7)));
                     p.attrs.backward = p.attrs.has_z_lse = true;
                     p.attrs.needs_z_bias = p.attrs.has_bias;
                     p.attrs.needs_z_sink = p.attrs.has_sink;
                     const int captured = p.attrs.captured();
                     for (int n = 0; n < captured; ++n)
                       if (is_float((p.in.end() - captured + n)->dtype()))
                         p.attrs.needs_z_captured |= std::int64_t{1} << n;
                     const DType compute = compute_type(x[0].dtype());
                     const Tensor own[] = {last_axis_contiguous(x[3]), contiguous(cast(x[4], compute)),
                                           last_axis_contiguous(x[5]), contiguous(cast(x[6], compute))};
                     p.in.insert(p.in.begin() + 3, std::begin(own), std::end(own));
                     return x[0].graph().record(flash_attn_backward_op, p.in, p.attrs, Where::current());
                   }});
    out.back().cpu_only = c.has_expression;
  }
  return out;
}

}  // namespace

}  // namespace tg
