// Ring attention, composed of the flash_attn calls in ring_schedule.h. It is a region with a custom gradient.
// Automatic differentiation of the calls and merges would give the same gradient, but it would keep all keys
// and partial results in memory.
#include <tilegrad/ops/ring_attention.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include <tilegrad/ops/ranks.h>

#include "ops/attention_call.h"
#include "ops/common.h"
#include "ops/ring_schedule.h"

namespace tg {

namespace {

using detail::RingCall, detail::RingStep;

struct Ring {
  int ranks;
  std::int64_t piece;  // number of tokens
  std::vector<RingStep> steps;
  AttentionOptions options;  // options of all calls
};

Tensor rows(const Tensor& x, std::int64_t first, std::int64_t count) {
  return first == 0 && count == x.size(2) ? x : slice(x, 2, first, first + count);
}

// x [B, H, rows, …] contains some rows of a piece, starting at row `first`. Returns the complete piece, with
// `value` in all other rows.
Tensor whole_piece(const Tensor& x, std::int64_t first, std::int64_t piece, double value) {
  const std::int64_t behind = piece - first - x.size(2);
  if (first == 0 && behind == 0) return x;
  Dims before, after;
  for (int axis = 0; axis < x.rank(); ++axis) {
    before.push_back(axis == 2 ? first : 0);
    after.push_back(axis == 2 ? behind : 0);
  }
  return pad(x, before, after, value);
}

// Calls f(p, part) for each piece p that contains rows of x, starting at row `from`. The part is padded to a
// complete piece.
template <class F>
void each_piece(const Tensor& x, std::int64_t first, std::int64_t piece, double value, F f) {
  for (int p = 0; p < 2; ++p) {
    const std::int64_t from = std::max(first, p * piece);
    const std::int64_t count = std::min(first + x.size(2), (p + 1) * piece) - from;
    if (count > 0) f(p, whole_piece(rows(x, from - first, count), from - p * piece, piece, value));
  }
}

using Pieces = std::array<Tensor, 2>;

// Joins the two pieces to [B, H, L, d], stored as [B, L, H, d], so that merging the heads is a view.
Tensor joined(const Pieces& x, DType dtype) {
  return transpose(cast(concat({transpose(x[0], 1, 2), transpose(x[1], 1, 2)}, 1), dtype), 1, 2);
}

void add_rows(Pieces& sum, const Tensor& x, std::int64_t first, std::int64_t piece) {
  each_piece(cast(x, compute_type(x.dtype())), first, piece, 0,
             [&](std::size_t p, const Tensor& part) { sum[p] = sum[p].defined() ? sum[p] + part : part; });
}

// Keys and values that are sent around the ring, together with their gradients.
struct Travellers {
  Tensor k, v;
  Pieces z_k, z_v;
  int at = 0;  // number of hops so far

  void go_on(int shift, int ranks, bool with_keys) {
    if (shift == at) return;
    std::vector<Tensor*> moved;
    if (with_keys) moved = {&k, &v};
    for (Pieces* z : {&z_k, &z_v})
      for (Tensor& piece : *z)
        if (piece.defined()) moved.push_back(&piece);
    TensorList list;
    for (const Tensor* x : moved) list.push_back(*x);
    list = ppermute(list, ranks, shift - at);
    for (std::size_t i = 0; i < moved.size(); ++i) *moved[i] = list[i];
    at = shift;
  }
};

// The number of visible keys per rank and call, i32 [ranks, calls]. Calls with the same number on all ranks
// are omitted.
Array visible_table(const Ring& ring, std::int64_t calls) {
  std::vector<std::int32_t> numbers;
  for (int rank = 0; rank < ring.ranks; ++rank)
    for (const RingStep& step : ring.steps)
      for (const RingCall& c : step.calls)
        if (!c.visible.empty())
          numbers.push_back(static_cast<std::int32_t>(c.visible[static_cast<std::size_t>(rank)]));
  return Array::of({ring.ranks, calls}, numbers);
}

std::int64_t calls_that_differ(const Ring& ring) {
  std::int64_t n = 0;
  for (const RingStep& step : ring.steps)
    n += std::ranges::count_if(step.calls, [](const RingCall& c) { return !c.visible.empty(); });
  return n;
}

// Returns the options of the calls, in their order.
class CallOptions {
 public:
  // `visible`: the rank's row of the table; undefined if no call needs it.
  CallOptions(const Ring& ring, const Tensor& visible, std::int64_t batch)
      : ring_(ring), visible_(visible), batch_(batch) {}

  AttentionOptions next(const RingCall& c) {
    AttentionOptions o = ring_.options;
    o.causal = c.right == 0;
    o.window_left = c.left, o.window_right = c.right == 0 ? -1 : c.right;
    if (c.visible.empty()) return o;
    const Tensor number = view(slice(visible_, 1, column_, column_ + 1), {1});
    ++column_;
    o.kv_lengths = contiguous(expand(number, {batch_}));
    return o;
  }

 private:
  const Ring& ring_;
  Tensor visible_;
  std::int64_t batch_, column_ = 0;
};

// ξ as a rounded value and the rounding error. If scores are far from 0, the rounded value has no bits left
// for log π.
struct SplitLse {
  Tensor value, rest;  // [B, H, rows]

  Tensor minus(const SplitLse& x) const { return (value - x.value) + (rest - x.rest); }
};

// The results O and ξ of one piece of queries, merged over the calls so far.
struct Merged {
  Tensor o;  // [B, H, piece, dv]
  SplitLse lse;

  void add(const Tensor& o_j, const SplitLse& lse_j) {
    if (!o.defined()) {
      o = o_j, lse = lse_j;
      return;
    }
    // ξ is finite, because the first call of a query includes the query's own key. A call without keys has
    // ξ_j = −∞ and O_j = 0, so it changes nothing.
    const Tensor apart = lse_j.minus(lse), is_less = less(apart, 0), ratio = exp(neg(abs(apart)));
    o = o + unsqueeze(where(is_less, ratio, 1) / (1 + ratio), 3) * (o_j - o);
    const Tensor top = where(is_less, lse.value, lse_j.value),
                 more = where(is_less, lse.rest, lse_j.rest) + log(1 + ratio), sum = top + more;
    lse = {sum, (top - sum) + more};
  }
};

// The results of one call of flash_attn, kept until its weight in the merged result is known.
struct CallResult {
  const RingCall* call;
  SplitLse lse;
};

// `in` contains q, k, v and, if there is a table, the rank's row of it. Returns O, ξ, and exp(ξ_j − ξ) for
// each call.
Tensors ring_forward(const Ring& ring, const Tensors& in) {
  const Tensor& q = in[0];
  Travellers keys{.k = in[1], .v = in[2]};
  CallOptions options(ring, in.size() > 3 ? in[3] : Tensor(), q.size(0));
  std::array<Merged, 2> merged;
  std::vector<CallResult> results;
  const DType compute = compute_type(q.dtype());
  for (const RingStep& step : ring.steps) {
    keys.go_on(step.shift, ring.ranks, true);
    for (const RingCall& c : step.calls) {
      const auto r = detail::flash_attn_with_rest(rows(q, c.query, c.queries), rows(keys.k, c.key, c.keys),
                                                  rows(keys.v, c.key, c.keys), options.next(c));
      results.push_back({&c, {r.lse, r.rest}});
      Pieces o, rest;
      each_piece(cast(r.o, compute), c.query, ring.piece, 0,
                 [&](std::size_t p, const Tensor& part) { o[p] = part; });
      each_piece(r.rest, c.query, ring.piece, 0, [&](std::size_t p, const Tensor& part) { rest[p] = part; });
      each_piece(r.lse, c.query, ring.piece, -INFINITY, [&](std::size_t p, const Tensor& part) {
        merged[p].add(o[p], {part, rest[p]});
      });
    }
  }
  const SplitLse lse{concat({merged[0].lse.value, merged[1].lse.value}, 2),
                     concat({merged[0].lse.rest, merged[1].lse.rest}, 2)};
  Tensors out{joined({merged[0].o, merged[1].o}, q.dtype()), lse.value};
  for (const CallResult& r : results) {
    const auto of_call = [&](const Tensor& x) { return rows(x, r.call->query, r.call->queries); };
    out.push_back(exp(r.lse.minus({of_call(lse.value), of_call(lse.rest)})));
  }
  return out;
}

bool is_zero(const Tensor& x) {
  const Node& node = x.graph().node_of(x.id());
  return node.op == &full_op && node.attrs.as<FullAttrs>().value == 0;
}

// Returns z_q, z_k and z_v of one call, computed from the merged o and ξ of its queries.
Tensors call_backward(const Tensors& in, const Tensor& z_lse, const AttentionOptions& o) {
  AttentionAttrs a{.scale = o.scale.value_or(1),  // it is always set
                   .causal = o.causal,
                   .window_left = o.window_left,
                   .window_right = o.window_right,
                   .softcap = o.softcap,
                   .has_lengths = o.kv_lengths.defined(),
                   .nondeterministic = o.nondeterministic,
                   .kernels = o.kernels,
                   .backward = true,
                   .has_z_lse = z_lse.defined()};
  Tensors operands = in;
  if (a.has_z_lse) operands.push_back(contiguous(z_lse));
  if (a.has_lengths) operands.push_back(o.kv_lengths);
  return in[0].graph().record(flash_attn_backward_op, operands, a, Where::current());
}

Tensors backward(const Ring& ring, const Tensors& in, const Tensors& out, const Tensors& z) {
  const Tensor &q = in[0], &o = out[0], &lse = out[1];
  const Tensor z_o = detail::last_axis_contiguous(cast(z[0], q.dtype()));
  Travellers keys{.k = in[1], .v = in[2]};
  CallOptions options(ring, in.size() > 3 ? in[3] : Tensor(), q.size(0));
  Pieces z_q;
  std::size_t nth = 2;
  for (const RingStep& step : ring.steps) {
    keys.go_on(step.shift, ring.ranks, true);
    for (const RingCall& c : step.calls) {
      const auto of_call = [&](const Tensor& x) { return rows(x, c.query, c.queries); };
      // If scores of a row are far from 0, flash_attn_backward normalizes P over the keys of the call. The P
      // over all keys is exp(ξ_j − ξ)·P.
      const Tensor is_far = greater(abs(of_call(lse)), most_plain_lse(q.dtype())),
                   weight = where(is_far, out[nth++], 1);
      const auto weighted = [&](const Tensor& x, const Tensor& far, const Tensor& by) {
        return detail::last_axis_contiguous(where(far, cast(by * x, x.dtype()), x));
      };
      const Tensors part = call_backward(
          {of_call(q), detail::last_axis_contiguous(rows(keys.k, c.key, c.keys)),
           detail::last_axis_contiguous(rows(keys.v, c.key, c.keys)), of_call(o), contiguous(of_call(lse)),
           weighted(of_call(z_o), unsqueeze(is_far, 3), unsqueeze(weight, 3))},
          is_zero(z[1]) ? Tensor() : weighted(of_call(z[1]), is_far, weight), options.next(c));
      add_rows(z_q, part[0], c.query, ring.piece);
      add_rows(keys.z_k, part[1], c.key, ring.piece);
      add_rows(keys.z_v, part[2], c.key, ring.piece);
    }
  }
  if (keys.at > 0) keys.go_on(ring.ranks, ring.ranks, false);  // back to the owner
  Tensors all{joined(z_q, q.dtype()), joined(keys.z_k, in[1].dtype()), joined(keys.z_v, in[2].dtype())};
  all.resize(in.size());
  return all;
}

void check_ring(const TensorArg& q, const TensorArg& k, const TensorArg& v, int ranks,
                const AttentionOptions& o) {
  const auto text = [&](const std::string& what) {
    return in_context("[ring_attention] " + what, q.where());
  };
  if (ranks < 1 || ranks > most_ring_ranks)
    throw ShapeError(text("the number of ranks is " + std::to_string(ranks) + ", expected 1 to " +
                          std::to_string(most_ring_ranks)));
  detail::check_options_at(q.where(), "ring_attention",
                           {{"scale", o.scale, Range::finite()},
                            {"softcap", o.softcap, Range::softcap(o.softcap)},
                            {"dropout", o.dropout, Range::from_below(0, 1)},
                            {"window_left", o.window_left, Range::whole_from(-1)},
                            {"window_right", o.window_right, Range::whole_from(-1)}});
  if (o.dropout > 0) throw Error(text("dropout is not supported on several ranks"));
  if (o.bias.defined() || o.sink.defined() || o.cu_seqlens_q.defined() || o.cu_seqlens_k.defined() ||
      o.kv_lengths.defined())
    throw Error(text("bias, sink, cu_seqlens and kv_lengths are not supported on several ranks"));
  if (o.score || o.mask) throw Error(text("score and mask functions are not supported on several ranks"));
  for (const TensorArg* x : {&q, &k, &v})
    if (x->tensor().rank() != 4)
      throw ShapeError(
          text("needs q [B, H, L, d], k [B, Hk, L, d] and v [B, Hk, L, dv]; got " + x->tensor().text()));
  const std::int64_t length = q.tensor().size(2);
  if (k.tensor().size(2) != length || v.tensor().size(2) != length)
    throw ShapeError(text("q, k and v differ in length"));
  if (length < 2 || length % 2 != 0)
    throw ShapeError(
        text("the rank has " + std::to_string(length) + " tokens, expected an even number of at least 2"));
}

// Throws if a sequence cannot be divided into two pieces per rank.
void check_division(int ranks, std::int64_t length) {
  if (ranks < 1 || ranks > most_ring_ranks)
    throw ShapeError("[ring_positions] the number of ranks is " + std::to_string(ranks) + ", expected 1 to " +
                     std::to_string(most_ring_ranks));
  if (length < 0 || length > INT32_MAX || (ranks > 1 && length % (2 * std::int64_t{ranks}) != 0))
    throw ShapeError("[ring_positions] a sequence of " + std::to_string(length) +
                     " tokens cannot be divided into two equal pieces for each of " + std::to_string(ranks) +
                     " ranks");
}

}  // namespace

std::vector<std::int64_t> ring_positions(int rank, int ranks, std::int64_t length) {
  check_division(ranks, length);
  if (rank < 0 || rank >= ranks)
    throw Error("[ring_positions] got rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  std::vector<std::int64_t> all(static_cast<std::size_t>(length / ranks));
  const auto half = ranks == 1 ? all.end() : all.begin() + std::ssize(all) / 2;
  std::iota(all.begin(), half, rank * (half - all.begin()));
  std::iota(half, all.end(), (2 * std::int64_t{ranks} - 1 - rank) * (all.end() - half));
  return all;
}

Tensor ring_positions(Graph& graph, int ranks, std::int64_t length, Where where) {
  try {
    check_division(ranks, length);
  } catch (const ShapeError& e) {
    throw ShapeError(in_context(e.what(), where));
  }
  if (ranks == 1) return arange(graph, 0, static_cast<double>(length), 1, i64, where);
  const std::int64_t piece = length / ranks / 2;
  std::vector<std::int64_t> first;
  for (int rank = 0; rank < ranks; ++rank)
    first.insert(first.end(), {rank * piece, (2 * std::int64_t{ranks} - 1 - rank) * piece});
  const Tensor own = local_shard({graph.constant(Array::of({ranks, 2}, first), where)}, ranks, 0, where)[0];
  const Tensor places = arange(graph, 0, static_cast<double>(piece), 1, i64, where);
  return view({add({view({own, where}, {2, 1}), where}, places), where}, {2 * piece});
}

AttentionResult ring_attention(TensorArg q, TensorArg k, TensorArg v, int ranks,
                               const AttentionOptions& options) {
  if (ranks == 1) return flash_attn(q, k, v, options);
  check_ring(q, k, v, ranks, options);
  const Scope scope("ring_attention", q.where());
  Graph& graph = q.tensor().graph();
  Ring ring{ranks, q.tensor().size(2) / 2, {}, options};
  ring.options.scale = options.scale.value_or(detail::default_scale(q.tensor()));
  // Both alignments are equivalent here, because L = T. flash_attn rejects top_left without a causal mask.
  if (options.causal) ring.options.alignment = AttentionOptions::bottom_right;
  // A window that covers all keys has no effect, so it is removed. One call then covers all keys of the rank.
  const std::int64_t length = std::int64_t{2} * ranks * ring.piece;
  const auto bound = [&](std::int64_t window) { return window < length - 1 ? window : -1; };
  ring.steps = detail::ring_schedule(
      ranks, ring.piece, {bound(options.window_left), options.causal ? 0 : bound(options.window_right)});

  Tensors in{detail::last_axis_contiguous(q.tensor()), detail::last_axis_contiguous(k.tensor()),
             detail::last_axis_contiguous(v.tensor())};
  if (const std::int64_t n = calls_that_differ(ring); n > 0)
    in.push_back(local_shard({graph.constant(visible_table(ring, n), q.where())}, ranks, 0, q.where())[0]);
  const auto first = static_cast<NodeId>(graph.nodes().size());
  const Tensors out = ring_forward(ring, in);
  CustomGradient region{
      first,
      static_cast<NodeId>(graph.nodes().size() - 1),
      {},
      {},
      [ring](const Tensors& x, const Tensors& y, const Tensors& z) { return backward(ring, x, y, z); }};
  for (const Tensor& x : in) region.in.push_back(x.id());
  for (const Tensor& x : out) region.out.push_back(x.id());
  graph.add_custom_gradient(std::move(region));
  return {out[0], out[1]};
}

}  // namespace tg
