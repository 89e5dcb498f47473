// The decomposition of flash_attn and flash_attn_backward into simpler ops, which store [B, H, L, T] matrices
// in memory [Stratos, FlashAttention eq. 4-5]. GEMMs use the operands' dtype; everything else uses its
// compute type.
#include <limits>
#include <memory>

#include <tilegrad/ops/flash_attn.h>
#include "ops/attention_call.h"
#include "ops/common.h"

namespace tg {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

using Inputs = detail::AttentionOperands<Tensor>;

// Returns 0, 1, …, n-1 along the rows of [n, 1]. Positions are f64, which represents every possible length
// exactly.
Tensor positions(Graph& graph, std::int64_t n) {
  return unsqueeze(arange(graph, 0, static_cast<double>(n), 1, f64), 1);
}

// For each row i [L, 1]: the packed sequence of the row, as its beginning and end in the queries and in the
// keys. All are 0 for rows outside of all sequences.
struct Sequences {
  Tensor q_begin, q_end, k_begin, k_end;  // [L, 1]
};
Sequences sequences_of(const Tensor& i, const Tensor& cu_q, const Tensor& cu_k) {
  const std::int64_t n = cu_q.size(0) - 1;
  const auto begins = [&](const Tensor& cu) { return slice(cast(cu, f64), 0, 0, n); };
  const auto ends = [&](const Tensor& cu) { return slice(cast(cu, f64), 0, 1, n + 1); };
  const Tensor inside = cast(logical_and(less_equal(begins(cu_q), i), less(i, ends(cu_q))), f64);  // [L, n]
  const auto of_row = [&](const Tensor& x) { return sum(inside * x, {1}, true); };
  return {of_row(begins(cu_q)), of_row(ends(cu_q)), of_row(begins(cu_k)), of_row(ends(cu_k))};
}

Tensor valid_keys(const Tensor& lengths) {  // [B, 1, 1, 1]
  return cast(view(lengths, {lengths.size(0), 1, 1, 1}), f64);
}

// Positions of queries and keys in their sequences. Shapes broadcast to [B, H, L, T].
struct Positions {
  Positions(const Inputs& x, const AttentionAttrs& a) {
    Graph& graph = x.q->graph();
    const std::int64_t L = x.q->size(2), T = x.k->size(2);
    row = positions(graph, L), keys = full(graph, {1, 1}, static_cast<double>(T), f64);
    Tensor queries = full(graph, {1, 1}, static_cast<double>(L), f64);
    t = transpose(positions(graph, T), 0, 1);
    if (a.packed) {
      const Sequences s = sequences_of(row, *x.cu_q, *x.cu_k);
      keys = s.k_end - s.k_begin;
      queries = s.q_end - s.q_begin;
      row = row - s.q_begin;
      t = t - s.k_begin;
    }
    if (a.has_lengths) keys = valid_keys(*x.lengths);
    diagonal = row + keys - queries;
  }
  Tensor row, t;    // row in the sequence; key in the sequence
  Tensor keys;      // number of keys of the sequence
  Tensor diagonal;  // key that is aligned with the row if the last query is aligned with the last key
};

// Whether an option other than the mask function makes keys invisible.
bool hides_keys(const AttentionAttrs& a) {
  return a.causal || a.window_left >= 0 || a.window_right >= 0 || a.packed || a.has_lengths;
}
// The visible keys of each query, [L, T] or [B, 1, L, T], without the mask function.
Tensor visible(const Positions& p, const AttentionAttrs& a) {
  Tensor seen = logical_and(greater_equal(p.t, 0), less(p.t, p.keys));
  if (a.causal) seen = logical_and(seen, less_equal(p.t, a.top_left ? p.row : p.diagonal));
  if (a.window_left >= 0)
    seen = logical_and(seen, greater_equal(p.t, p.diagonal - static_cast<double>(a.window_left)));
  if (a.window_right >= 0)
    seen = logical_and(seen, less_equal(p.t, p.diagonal + static_cast<double>(a.window_right)));
  return seen;
}

// x && y, where an undefined tensor is true everywhere.
Tensor both(const Tensor& x, const Tensor& y) {
  return !x.defined() ? y : !y.defined() ? x : logical_and(x, y);
}

// Computes an expression by ops of the caller's graph.
class ExpressionOps {
 public:
  using Value = AttentionExpression::Value;
  ExpressionOps(const AttentionExpression& e, const Inputs& x, const AttentionAttrs& a, const Positions& p,
                const Tensor& score, const Tensor& seen)
      : e_(e), graph_(x.q->graph()), inputs_(x), seen_(seen), score_(score) {
    const auto along = [&](std::int64_t n, const Shape& shape) {
      return cast(view(arange(graph_, 0, static_cast<double>(n), 1, f64), shape), e.compute);
    };
    b_ = along(x.q->size(0), {x.q->size(0), 1, 1, 1}), h_ = along(x.q->size(1), {1, x.q->size(1), 1, 1});
    i_ = cast(a.top_left ? p.row : p.diagonal, e.compute), t_ = cast(p.t, e.compute);
    results_.resize(e.code.size()), elements_.resize(e.captures.size()), index_.resize(e.captures.size());
    if (e.mask.kind == Value::none) return;
    mask_ = value(e.mask);
    seen_ = both(seen, mask_);
  }

  Tensor mask() const { return mask_; }
  Tensor value(const Value& v) {
    const auto at = static_cast<std::size_t>(v.index);
    switch (v.kind) {
      case Value::score:
        return score_;
      case Value::b:
        return b_;
      case Value::h:
        return h_;
      case Value::i:
        return i_;
      case Value::t:
        return t_;
      case Value::constant:
        return full(graph_, {1, 1}, v.number, e_.compute);
      case Value::capture:
        if (!elements_[at].defined()) elements_[at] = element(at);
        return elements_[at];
      default:
        if (!results_[at].defined()) results_[at] = result(e_.code[at]);
        return results_[at];
    }
  }

  // The gradients of the captured tensors with needed gradients, from z_A.
  Tensors gradients(const Tensor& z_a, std::int64_t needed) {
    Tensors z(static_cast<std::size_t>(e_.captured));
    for (std::size_t c = 0; c < e_.captures.size(); ++c) {
      const int tensor = e_.captures[c].tensor;
      if (!(needed >> tensor & 1)) continue;
      const Tensor& x = inputs_.captured[tensor];
      Tensor& sum = z[static_cast<std::size_t>(tensor)];
      if (!sum.defined()) sum = full(graph_, {x.numel()}, 0, e_.compute);
      if (e_.slopes[c].kind == Value::none) continue;
      Tensor terms = z_a * value(e_.slopes[c]);
      if (seen_.defined()) terms = where(seen_, terms, 0);
      value({Value::capture, static_cast<std::int32_t>(c)});  // computes its index
      const Shape shape = index_[c].shape();
      sum = index_add(sum, 0, reshape(index_[c], {index_[c].numel()}),
                      reshape(sum_to(terms, shape), {index_[c].numel()}));
    }
    Tensors out;
    for (int k = 0; k < e_.captured; ++k)
      if (needed >> k & 1)
        out.push_back(cast(reshape(z[static_cast<std::size_t>(k)], inputs_.captured[k].shape()),
                           inputs_.captured[k].dtype()));
    return out;
  }

 private:
  // captured[index…], through the index of the element in row-major order. Indices of invisible pairs may be
  // out of range, so they are replaced by 0.
  Tensor element(std::size_t capture) {
    const AttentionExpression::Capture& c = e_.captures[capture];
    const Tensor& x = inputs_.captured[c.tensor];
    Tensor flat = full(graph_, {1, 1}, 0, i64), inside;
    std::int64_t stride = x.numel();
    for (std::size_t k = 0; k < c.index.size(); ++k) {
      const std::int64_t size = x.size(static_cast<std::int64_t>(k));
      stride = size == 0 ? 0 : stride / size;
      const Tensor n = cast(value(c.index[k]), i64);
      inside = both(inside, logical_and(greater_equal(n, 0), less(n, size)));
      flat = flat + n * stride;
    }
    if (inside.defined()) flat = where(inside, flat, x.numel());  // an error of index_select
    constexpr auto pair = 1U << Value::i | 1U << Value::t | 1U << Value::score;
    if (seen_.defined() && (c.depends & pair)) flat = where(seen_, flat, 0);
    index_[capture] = four_axes(flat);
    const Tensor y = index_select(reshape(x, {x.numel()}), 0, reshape(flat, {flat.numel()}));
    return cast(view(y, index_[capture].shape()), c.dtype);
  }
  static Tensor four_axes(const Tensor& x) {
    Shape shape = x.shape();
    while (shape.size() < 4) shape.insert(0, 1);
    return view(x, shape);
  }

  Tensor result(const AttentionExpression::Instruction& i) {
    Tensors in;
    Shape shape;
    for (const Value& v : i.in) {
      in.push_back(value(v));
      shape = broadcast_shapes(shape, in.back().shape(), "expression");
    }
    for (Tensor& x : in)
      if (x.shape() != shape) x = expand(x, shape);
    return graph_.record(*i.op, in, i.attrs, Where::current())[0];
  }

  const AttentionExpression& e_;
  Graph& graph_;
  const Inputs& inputs_;
  Tensor seen_, mask_;  // visible pairs; undefined: all
  Tensor score_, b_, h_, i_, t_;
  Tensors results_, elements_, index_;
};

// Returns x [B, heads, rows, size] with zeros in rows outside of all sequences, because such rows may contain
// any values.
Tensor alive_rows(const Tensor& x, const Tensor& cu, const Tensor& lengths) {
  const Tensor r = positions(x.graph(), x.size(2));
  if (lengths.defined()) return where(less(r, valid_keys(lengths)), x, 0);
  if (!cu.defined()) return x;
  const Tensor bounds = cast(cu, f64);
  const std::int64_t n = cu.size(0);
  return where(logical_and(greater_equal(r, slice(bounds, 0, 0, 1)), less(r, slice(bounds, 0, n - 1, n))), x,
               0);
}

// The scores A, which both directions need. [B, H, ...] and [B, Hk, R, ...] are views of each other.
struct Scores {
  Scores(const Inputs& x, const AttentionAttrs& a)
      : H(x.q->size(1)),
        Hk(x.k->size(1)),
        R(Hk == 0 ? 1 : H / Hk),
        dtype(x.q->dtype()),
        compute(compute_type(dtype)) {
    const Tensor none, cu_q = a.packed ? *x.cu_q : none, cu_k = a.packed ? *x.cu_k : none,
                       lengths = a.has_lengths ? *x.lengths : none;
    q = grouped(alive_rows(*x.q, cu_q, none));
    k = unsqueeze(alive_rows(*x.k, cu_k, lengths), 2);
    v = unsqueeze(alive_rows(*x.v, cu_k, lengths), 2);
    scores = cast(by_head(matmul(q, transpose(k, -2, -1))), compute) * a.scale;
    if (a.softcap > 0) {
      const Tensor y = tanh(scores / a.softcap);
      scores = a.softcap * y;
      slope = 1 - y * y;
    }
    if (a.expression) apply(*a.expression, x, a);
    if (x.bias) scores = scores + cast(*x.bias, compute);
    if (!a.expression && hides_keys(a)) seen = visible(Positions(x, a), a);
    if (seen.defined()) scores = where(seen, scores, -infinity);
    if (x.sink) sink = view(cast(*x.sink, compute), {1, H, 1, 1});
    if (a.dropout > 0) keep = attention_keep_mask(*x.rng, scores.shape(), a.dropout, a.stream);
  }

  void apply(const AttentionExpression& e, const Inputs& x, const AttentionAttrs& a) {
    const Positions positions(x, a);
    if (hides_keys(a)) seen = visible(positions, a);
    expression = std::make_shared<ExpressionOps>(e, x, a, positions, scores, seen);
    seen = both(seen, expression->mask());
    if (e.score.kind == AttentionExpression::Value::none) return;
    const Tensor own = expression->value(e.score_slope);
    slope = slope.defined() ? slope * own : own;
    scores = expand(expression->value(e.score), scores.shape());
  }

  Tensor grouped(const Tensor& t) const {  // [B, H, m, n] → [B, Hk, R, m, n]
    return view(t, {t.size(0), Hk, R, t.size(2), t.size(3)});
  }
  Tensor by_head(const Tensor& t) const {  // the inverse
    return reshape(t, {t.size(0), H, t.size(3), t.size(4)});
  }
  Tensor summed_over_group(const Tensor& t) const {  // [B, Hk, R, m, n] → [B, Hk, m, n]
    return R == 1 ? reshape(t, {t.size(0), Hk, t.size(3), t.size(4)}) : sum(t, {2});
  }
  Tensor dropped(const Tensor& t, const AttentionAttrs& a) const {
    return keep.defined() ? where(keep, t / (1 - a.dropout), 0) : t;
  }
  Tensor for_product(const Tensor& t) const { return grouped(cast(t, dtype)); }

  std::int64_t H, Hk, R;
  DType dtype, compute;
  Tensor q, k, v;  // [B, Hk, R, L, d], [B, Hk, 1, T, d], [B, Hk, 1, T, dv]
  Tensor scores;   // A [B, H, L, T], −∞ if masked
  Tensor slope;    // ∂A/∂(scale·q·kᵀ), which broadcasts to [B, H, L, T]; undefined if it is 1
  std::shared_ptr<ExpressionOps> expression;
  Tensor sink;  // [1, H, 1, 1], undefined without
  Tensor keep;  // [B, H, L, T], undefined without dropout
  Tensor seen;  // visible pairs, which broadcasts to [B, H, L, T]; undefined if all are visible
};

// c = A.max and π = exp(A − c).sum for each row [B, H, L, 1], including the sink. A row without keys has c =
// 0 and π = 1.
struct Softmax {
  explicit Softmax(const Scores& n) {
    const Shape rows{n.scores.size(0), n.scores.size(1), n.scores.size(2), 1};
    c = n.scores.size(3) == 0 ? full(n.scores.graph(), rows, -infinity, n.compute)
                              : max(n.scores, {-1}, true);
    if (n.sink.defined()) c = maximum(c, n.sink);
    empty = equal(c, -infinity);
    c = stop_gradient(where(empty, 0, c));
    e = exp(n.scores - c);
    pi = sum(e, {-1}, true);
    if (n.sink.defined()) pi = pi + exp(n.sink - c);
    pi = where(empty, 1, pi);
  }
  Tensor c, empty, e, pi;  // e = exp(A − c)
};

}  // namespace

// P = exp(A − c) ⊘ π with π = exp(A − c).sum, O = P·V, ξ = c + log π [Stratos, FlashAttention eq. 4].
Tensors detail::decompose_attention(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<AttentionAttrs>();
  const Inputs x(in, a);
  const Scores n(x, a);
  const Softmax m(n);
  const Shape rows{n.scores.size(0), n.scores.size(1), n.scores.size(2)};
  const Tensor xi = m.c + log(m.pi), lse = where(m.empty, -infinity, xi);
  const Tensor o = n.by_head(matmul(n.for_product(n.dropped(m.e / m.pi, a)), n.v));
  Tensors out{o, reshape(lse, rows)};
  if (a.has_lse_rest) out.push_back(reshape(stop_gradient((m.c - xi) + log(m.pi)), rows));
  return out;
}

// P = exp(A − ξ), u = (O ⊛ z_O).sum − z_ξ, z_A = P ⊛ (z_P − u); the rest is [Stratos, FlashAttention eq. 5].
// Beyond most_plain_lse, P = exp(A − c) ⊘ π, because ξ has no bits left for log π.
Tensors detail::decompose_attention_backward(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<AttentionAttrs>();
  const Inputs x(in, a);
  Scores n(x, a);
  const Softmax m(n);
  const Tensor xi = unsqueeze(*x.lse, -1), empty = equal(xi, -infinity),
               is_far = logical_and(greater(abs(xi), most_plain_lse(n.dtype)), logical_not(empty));
  // P = exp(A − t − o). For a row without keys, t = 0, so that P is 0 and not NaN.
  const Tensor t = where(is_far, m.c, where(empty, 0, xi)), o = where(is_far, log(m.pi), 0);
  const Tensor p = exp((n.scores - t) - o);
  Tensor u = sum(cast(*x.o, n.compute) * cast(*x.z_o, n.compute), {-1}, true);
  if (x.z_lse) u = u - unsqueeze(*x.z_lse, -1);
  const Tensor z_o = n.grouped(*x.z_o);
  const Tensor z_p = cast(n.by_head(matmul(z_o, transpose(n.v, -2, -1))), n.compute);
  const Tensor z_a = p * (n.dropped(z_p, a) - u);
  Tensor z_s = z_a;
  if (n.slope.defined()) z_s = z_a * n.slope;
  // The slope of an invisible pair may be infinite.
  if (a.expression && n.seen.defined()) z_s = where(n.seen, z_s, 0);
  z_s = n.for_product(z_s * a.scale);
  Tensors z{n.by_head(matmul(z_s, n.k)), n.summed_over_group(matmul(transpose(z_s, -2, -1), n.q)),
            n.summed_over_group(matmul(transpose(n.for_product(n.dropped(p, a)), -2, -1), z_o))};
  if (a.needs_z_bias) z.push_back(cast(sum_to(z_a, x.bias->shape()), n.dtype));
  if (a.needs_z_sink) z.push_back(cast(-sum(where(empty, 0, exp((n.sink - t) - o) * u), {0, 2, 3}), n.dtype));
  if (a.expression)
    for (const Tensor& z_c : n.expression->gradients(z_a, a.needs_z_captured)) z.push_back(z_c);
  return z;
}

Tensor attention_weights(TensorArg result) {
  Graph& graph = result.tensor().graph();
  const Node& node = graph.node_of(result.tensor().id());
  if (node.op != &flash_attn_op)
    throw Error(in_context("[attention_weights] needs a result of flash_attn, got one of " + node.op->name,
                           result.where()));
  const Scope scope(result);
  const auto& a = node.attrs.as<AttentionAttrs>();
  Tensors in;
  for (ValueId v : node.in) in.push_back(graph.tensor(v));
  const Softmax m(Scores(Inputs(in, a), a));
  return m.e / m.pi;
}

const Op& attention_keep_mask_op =
    *define_op({.name = "attention_keep_mask",
                .doc = "rng → keep [B, H, L, T]: the elements of P that attention dropout keeps, "
                       "each with probability 1 − p",
                .infer =
                    [](std::span<const Operand> in, const Attrs& attrs) {
                      detail::require_operands(in, 1);
                      const auto& a = attrs.as<KeepMaskAttrs>();
                      if (in[0].dtype != i64 || in[0].shape() != Shape{2})
                        throw ShapeError("needs the graph's rng, i64 [2]");
                      if (a.shape.size() != 4) throw ShapeError("needs a shape [B, H, L, T]");
                      check_options({}, {{"dropout", a.dropout, Range::from_below(0, 1)}});
                      return detail::row_major_output(boolean, a.shape);
                    },
                .not_differentiable = "its result is boolean",
                .samples = []() -> std::vector<Sample> {
                  return {{"mask", {{{2}, {Fill::index, 0, 9}, i64}}, [](auto x) {
                             return attention_keep_mask(x[0], {2, 3, 5, 7}, 0.3, 1);
                           }}};
                }});

Tensor attention_keep_mask(TensorArg rng, const Shape& shape, double dropout, std::int64_t stream) {
  return record(attention_keep_mask_op, {rng}, KeepMaskAttrs{shape, dropout, stream});
}

}  // namespace tg
