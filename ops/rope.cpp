// rope, the rotary position embedding [Su, RoPE]: pair i of a row x at position p is rotated by the angle
// p·ω_i:
//      (a, b) → (a·cos - b·sin, a·sin + b·cos).
// The gradient of a rotation is the inverse rotation.
#include "ops/rope.h"

#include <cmath>

#include "ops/common.h"

namespace tg {

namespace {

Tensors decompose_rope(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<RopeAttrs>();
  const auto n = static_cast<std::int64_t>(a.frequencies.size());
  const DType wide = compute_type(in[0].dtype());
  const Tensor x = cast(in[0], wide);
  Graph& graph = x.graph();
  Tensor positions;
  if (in.size() > 1) {
    positions = in[1];
  } else {
    const auto first = static_cast<double>(a.start);
    positions = arange(graph, first, first + static_cast<double>(x.size(-2)));
  }
  const Tensor angle = unsqueeze(cast(positions, f64), -1) * graph.constant(Array::of(a.frequencies));
  const Tensor c = cast(cos(angle), wide), s = cast(a.inverse ? -sin(angle) : sin(angle), wide);
  const Tensor u = a.interleaved ? slice(x, -1, 0, 2 * n, 2) : slice(x, -1, 0, n);
  const Tensor v = a.interleaved ? slice(x, -1, 1, 2 * n, 2) : slice(x, -1, n, 2 * n);
  const Tensor turned_u = u * c - v * s, turned_v = u * s + v * c;
  Shape front = x.shape();
  front[front.size() - 1] = 2 * n;
  Tensor y =
      a.interleaved ? reshape(stack({turned_u, turned_v}, -1), front) : concat({turned_u, turned_v}, -1);
  if (2 * n < x.size(-1)) y = concat({y, slice(x, -1, 2 * n, x.size(-1))}, -1);
  return {cast(y, in[0].dtype())};
}

[[noreturn]] void refuse(const TensorArg& x, const std::string& what) {
  throw ShapeError(in_context("[rope] " + what + "; got x " + x.tensor().text(), x.where()));
}

}  // namespace

const Op& rope_op = *define_op(
    {.name = "rope",
     .doc = "x [..., L, d], positions? → y: pair i of the row at position p is rotated by p·ωᵢ: "
            "(a, b) → (a·cos − b·sin, a·sin + b·cos)",
     .infer =
         [](std::span<const Operand> in, const Attrs& a) {
           detail::require_operands(in, 1, 2);
           detail::require_float(in[0].dtype);
           detail::check_rank_at_least(in[0], in.size() > 1 ? 1 : 2);
           if (2 * static_cast<std::int64_t>(a.as<RopeAttrs>().frequencies.size()) > in[0].shape().back())
             throw ShapeError("more dimensions to rotate than a row has");
           for (const double f : a.as<RopeAttrs>().frequencies)
             check_options({}, {{"frequency", f, Range::finite()}});
           if (in.size() > 1) {
             detail::require_index(in[1].dtype);
             if (in[1].shape() != detail::without_last_axis(in[0].shape()))
               throw ShapeError("needs a position for each row");
           }
           return detail::pointwise_output(in.first(1), in[0].dtype);
         },
     .vjp = [](const Backprop& g) -> Tensors {
       RopeAttrs back = g.attrs.as<RopeAttrs>();
       back.inverse = !back.inverse;
       if (g.in.size() == 1) return {record(rope_op, {g.z[0]}, back)};
       return {record(rope_op, {g.z[0], g.in[1]}, back), Tensor()};
     },
     .decompose = decompose_rope,
     .samples = []() -> std::vector<Sample> {
       return {{"half split", {{{2, 3, 8}}}, [](auto x) { return rope(x[0]); }},
               {"interleaved, partial, given positions",
                {{{2, 1, 3, 8}}, {{2, 1, 3}, {Fill::index, 0, 50}, i64}},
                [](auto x) { return rope(x[0], x[1], {.dims = 6, .interleaved = true}); }},
               {"from position 5", {{{3, 4}}}, [](auto x) {
                  return rope(x[0], {}, {.theta = 100, .start = 5});
                }}};
     },
     .cost = detail::flops_each<10>,
     // The roundings of a sine and of the sum of two products.
     .roundings = [](std::span<const Operand>, std::span<const Operand>, const Attrs&) { return 3.; },
     .recompute = Recompute::cheap,
     .inplace = {{0, 0}}});

const RopeAttrs* rope_of(const Op& op, const Attrs& attrs) {
  return &op == &rope_op ? &attrs.as<RopeAttrs>() : nullptr;
}

std::vector<double> rope_frequencies(std::int64_t dims, double theta) {
  constexpr std::int64_t most = 1 << 20;
  check_options<ShapeError>("rope_frequencies", {{"dims", dims, Range::between(0, most)}});
  check_options("rope_frequencies", {{"theta", theta, Range::above(0)}});
  std::vector<double> f;
  for (std::int64_t i = 0; i < dims; i += 2)
    f.push_back(std::pow(theta, -static_cast<double>(i) / static_cast<double>(dims)));
  return f;
}

Tensor rope(TensorArg x, TensorArg at, const RopeOptions& o) {
  const Scope scope(x);
  const Tensor& positions = at.optional();
  if (x.tensor().rank() < 1) refuse(x, "needs rows");
  const std::int64_t dims = o.dims != 0 ? o.dims : x.tensor().size(-1);
  if (o.frequencies.empty() && (dims < 0 || dims % 2 != 0 || dims > x.tensor().size(-1)))
    refuse(x, "the number of dimensions to rotate must be even and at most a row's, got " +
                  std::to_string(dims));
  if (o.start < -max_elements || o.start > max_elements)
    refuse(x, "the first position must lie within ±2^53, got " + std::to_string(o.start));
  if (o.frequencies.empty())
    detail::check_options_at(x.where(), "rope", {{"theta", o.theta, Range::above(0)}});
  RopeAttrs a{o.frequencies.empty() ? rope_frequencies(dims, o.theta) : o.frequencies, o.interleaved, false,
              o.start};
  if (!positions.defined()) return record(rope_op, {x}, a);
  const Shape rows = detail::without_last_axis(x.tensor().shape());
  return record(rope_op, {x, positions.shape() == rows ? positions : expand(positions, rows)}, a);
}

}  // namespace tg
