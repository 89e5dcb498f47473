// paged_attn: checks, decomposition and samples.
#include <tilegrad/ops/paged_attn.h>

#include <algorithm>
#include <cmath>

#include "ops/attention_call.h"
#include "ops/common.h"

namespace tg {

extern const Op& paged_attn_op;

namespace {

using detail::refuse_shape;

void check_pools(const Operand& q, const Operand& k, const Operand& v) {
  const Shape &s = q.shape(), &n = k.shape();
  if (s.size() != 4 || n.size() != 4 || v.layout.rank() != 4)
    throw ShapeError("needs q [B, H, L, d], k [P, page, Hk, d] and v [P, page, Hk, dv]");
  if (s[3] < 1) throw ShapeError("the head size d must be at least 1");
  if (n[1] < 1) throw ShapeError("a page must have room for at least 1 token");
  if (n[3] != s[3]) throw ShapeError("q and k differ in head size");
  for (int a = 0; a < 3; ++a)
    if (v.shape()[a] != n[a]) refuse_shape("v", v, "k's pages " + Shape{n[0], n[1], n[2]}.text() + " and dv");
  detail::check_heads(s[1], n[2]);
  for (const Operand* x : {&q, &k, &v})
    if (!detail::is_last_axis_contiguous(x->layout)) throw ShapeError("needs contiguous last axes");
}

void check_texts(const Operand& q, const Operand& k, const Operand& table, const Operand& lengths) {
  const std::int64_t B = q.shape()[0];
  if (table.dtype != i32 || lengths.dtype != i32) throw DTypeError("table and lengths must be i32");
  if (table.layout.rank() != 2 || table.shape()[0] != B)
    refuse_shape("table", table, "[" + std::to_string(B) + ", pages of a sequence]");
  detail::require_shape("lengths", lengths, {B});
  for (const Operand* x : {&table, &lengths})
    if (!x->layout.is_contiguous()) throw ShapeError("needs a contiguous table and lengths");
  // Quantities that kernels count in 32 bits: pages, heads, queries, head sizes, and the keys of a sequence.
  const Shape &s = q.shape(), &n = k.shape();
  const auto is_large = [](std::int64_t e) { return e > INT32_MAX; };
  if (std::any_of(s.begin() + 1, s.end(), is_large) || std::any_of(n.begin(), n.end(), is_large) ||
      table.shape()[1] > INT32_MAX / n[1])
    throw ShapeError("heads, lengths, pages and head sizes must be below 2^31");
}

std::vector<OutSpec> infer_paged(std::span<const Operand> in, const Attrs& attrs) {
  const auto& a = attrs.as<PagedAttentionAttrs>();
  detail::require_operands(in, std::size_t{5} + a.has_sink + static_cast<std::size_t>(a.captured()));
  const Operand &q = in[0], &k = in[1], &v = in[2];
  detail::require_float(q.dtype);
  if (k.dtype != q.dtype || v.dtype != q.dtype) throw DTypeError("q, k and v differ in dtype");
  check_pools(q, k, v);
  check_texts(q, k, in[3], in[4]);
  check_options({}, {{"scale", a.scale, Range::finite()},
                     {"softcap", a.softcap, Range::softcap(a.softcap)},
                     {"window_left", a.window_left, Range::whole_from(-1)}});
  const Shape& s = q.shape();
  if (a.has_sink) {
    detail::check_sink(in[5], q);
    if (!in[5].layout.is_contiguous()) throw ShapeError("needs a contiguous sink");
  }
  if (a.expression) detail::check_captured(*a.expression, q.dtype, &in[0] + 5 + a.has_sink);
  const Layout o = permute(row_major({s[0], s[2], s[1], v.shape()[3]}), {0, 2, 1, 3});
  return {{q.dtype, o}, {compute_type(q.dtype), row_major({s[0], s[1], s[2]})}};
}

// Copies the pages of each sequence into one tensor: [P, page, Hk, d] → [B, Hk, n·page, d].
Tensor cache_of_sequences(const Tensor& pool, const Tensor& table) {
  const Tensor pages = index_select(pool, 0, table);
  const Shape& s = pages.shape();
  return view(pages, {s[0], s[1] * s[2], s[3], s[4]}).transpose(1, 2);
}

Tensors decompose_paged(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<PagedAttentionAttrs>();
  Tensors operands{in[0], detail::last_axis_contiguous(cache_of_sequences(in[1], in[3])),
                   detail::last_axis_contiguous(cache_of_sequences(in[2], in[3]))};
  if (a.has_sink) operands.push_back(in[5]);
  operands.push_back(in[4]);
  operands.insert(operands.end(), in.begin() + 5 + a.has_sink, in.end());
  return in[0].graph().record(flash_attn_op, operands,
                              AttentionAttrs{.scale = a.scale,
                                             .causal = true,
                                             .window_left = a.window_left,
                                             .softcap = a.softcap,
                                             .has_sink = a.has_sink,
                                             .has_lengths = true,
                                             .expression = a.expression},
                              Where::current());
}

// The cost if all sequences have the maximum length. Only the pages of the sequences are read, so the cost
// does not depend on the size of the pools. It also does not depend on the number of table entries per page.
Cost paged_cost(std::span<const Operand> in, std::span<const Operand>, const Attrs&) {
  const Shape &q = in[0].shape(), &k = in[1].shape(), &v = in[2].shape();
  const double keys = static_cast<double>(in[3].layout.numel() * k[1]),
               size = static_cast<double>(size_of(in[1].dtype)),
               of_pools = static_cast<double>(in[1].layout.numel() + in[2].layout.numel());
  return {.flops = 2 * keys * static_cast<double>(q[1] * q[2] * (k[3] + v[3])),
          .bytes = size * (keys * static_cast<double>(k[2] * (k[3] + v[3])) - of_pools)};
}

// A variant of a call: sizes, minimum length of the sequences, and options.
struct PagedVariant {
  const char* name;
  std::int64_t B, H, Hk, L, d, dv, P, page, n;
  double shortest;  // below L, some queries are padding
  PagedAttentionOptions options = {};
  bool sink = false, v_in_k = false, expression = false;
};

std::vector<Sample> paged_samples() {
  const PagedVariant all[] = {
      {"plain", 2, 2, 2, 1, 4, 4, 7, 4, 3, 1},
      {"several queries", 2, 2, 1, 5, 4, 4, 7, 3, 4, 5},
      {"padding", 3, 2, 2, 4, 4, 4, 5, 2, 3, 0},
      {"grouped, dv other than d", 2, 4, 2, 3, 4, 3, 6, 4, 2, 3, {.scale = 0.3}},
      {"values in keys", 2, 4, 1, 2, 6, 4, 6, 4, 3, 2, {}, false, true},
      {"window", 2, 2, 1, 3, 4, 4, 5, 4, 3, 3, {.window_left = 3}},
      {"softcap", 1, 2, 2, 2, 4, 4, 5, 4, 3, 2, {.softcap = 1.5}},
      {"sink", 2, 4, 2, 2, 4, 4, 5, 4, 2, 2, {}, true},
      {"all at once", 2, 4, 2, 4, 5, 3, 9, 3, 4, 4, {.window_left = 4, .softcap = 2}, true},
      {"score and mask", 2, 4, 2, 3, 4, 4, 7, 3, 4, 3, {.softcap = 2}, true, false, true},
      {"heads of 8", 2, 4, 2, 2, 8, 8, 6, 8, 2, 2},
      {"no queries", 2, 2, 1, 0, 4, 4, 5, 4, 2, 0},
      {"no pages", 2, 2, 1, 2, 4, 4, 5, 4, 0, 0},
  };
  std::vector<Sample> samples;
  for (const PagedVariant& c : all) {
    const Fill pages{Fill::index, 0, static_cast<double>(c.P)},
        lengths{Fill::index, c.shortest, static_cast<double>(c.n * c.page + 1)};
    std::vector<SampleInput> inputs{{{c.B, c.H, c.L, c.d}}, {{c.P, c.page, c.Hk, c.d}}};
    if (!c.v_in_k) inputs.push_back({{c.P, c.page, c.Hk, c.dv}});
    inputs.insert(inputs.end(), {{{c.B, c.n}, pages, i32}, {{c.B}, lengths, i32}});
    if (c.sink) inputs.push_back({{c.H}});
    if (c.expression) inputs.push_back({{c.H, c.n * c.page}});
    const auto call = [c](std::span<const Tensor> x) {
      const Tensor v = c.v_in_k ? slice(x[1], 3, 0, c.dv) : x[2];
      const std::span<const Tensor> more = x.subspan(c.v_in_k ? 2 : 3);
      PagedAttentionOptions o = c.options;
      if (c.sink) o.sink = more[2];
      if (c.expression) {
        o.score = [table = more.back()](const ScoreAt& at) {
          return at.score + at.at(table, {at.h, at.i - at.t}) * at.score;
        };
        o.mask = [](const ScoreAt& at) { return not_equal(remainder(at.i - at.t, 3), 1); };
      }
      const auto [out, lse] = paged_attn(x[0], x[1], v, more[0], more[1], o);
      return c.shortest >= static_cast<double>(c.L) ? Tensors{out, lse} : Tensors{out};
    };
    samples.push_back({c.name, inputs, call});
    samples.back().cpu_only = c.expression;
  }
  return samples;
}

}  // namespace

const Op& paged_attn_op = *define_op(
    {.name = "paged_attn",
     .doc = "q [B, H, L, d], k [P, page, Hk, d], v [P, page, Hk, dv], table [B, n], lengths [B], "
            "sink?, … → o [B, H, L, dv], ξ [B, H, L]: flash_attn with the keys k[table[b, t / page], "
            "t % page], t < lengths[b], causal: the queries are the last L of each sequence",
     .infer = infer_paged,
     .not_differentiable = "a cache is for evaluation",
     .decompose = decompose_paged,
     .samples = paged_samples,
     .cost = paged_cost,
     // As in flash_attn, for the maximum number of keys.
     .roundings =
         [](std::span<const Operand> in, std::span<const Operand>, const Attrs&) {
           const Shape &k = in[1].shape(), &table = in[3].shape();
           return static_cast<double>(k[3] + 2 * table[1] * k[1]) + 7;
         },
     .strided_results = true});

const PagedAttentionAttrs* paged_attention_of(const Op& op, const Attrs& attrs) {
  return &op == &paged_attn_op ? &attrs.as<PagedAttentionAttrs>() : nullptr;
}

AttentionResult paged_attn(TensorArg q, TensorArg k, TensorArg v, TensorArg table, TensorArg lengths,
                           const PagedAttentionOptions& options) {
  const Scope scope(q);
  const Tensor& query = q.tensor();
  PagedAttentionAttrs attrs{.scale = options.scale.value_or(detail::default_scale(query)),
                            .window_left = options.window_left,
                            .softcap = options.softcap,
                            .has_sink = options.sink.defined()};
  Tensors in;
  for (const TensorArg* x : {&q, &k, &v}) in.push_back(detail::last_axis_contiguous(x->tensor()));
  for (const TensorArg* x : {&table, &lengths}) in.push_back(contiguous(x->tensor()));
  if (attrs.has_sink) in.push_back(contiguous(detail::cast_float(options.sink, query.dtype())));
  if (options.score || options.mask) {
    detail::PlainAttention plain{true, false, attrs.window_left, -1, attrs.softcap};
    attrs.expression = detail::record_expression(options.score, options.mask, compute_type(query.dtype()), in,
                                                 plain, q.where());
    attrs.window_left = plain.window_left, attrs.softcap = plain.softcap;
  }
  const Tensors out = query.graph().record(paged_attn_op, in, attrs, q.where());
  return {out[0], out[1]};
}

}  // namespace tg
