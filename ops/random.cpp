// Random numbers: dropout, and tensors filled from a distribution. Every number is a function of (seed, step,
// stream, element). It does not depend on threads or the backend. Recomputation therefore gives the same
// number.
#include "ops/random.h"

#include <tilegrad/core/base/random.h>

#include "ops/common.h"

namespace tg {

extern const Op& bernoulli_op;

namespace {

// The graph's random state, recorded before the op, and a stream number. The stream number is the index of
// the next node, so it is unique.
struct Source {
  Tensor state;
  std::uint64_t stream;
};
Source source(Graph& graph, const Where& where) {
  const Tensor state = graph.rng(where);
  return {state, graph.nodes().size()};
}

std::vector<OutSpec> infer_fill(std::span<const Operand> in, const Attrs& a) {
  detail::require_operands(in, 1);
  detail::require_rng(in[0]);
  const auto& r = a.as<RandomAttrs>();
  return detail::row_major_output(r.dtype, r.shape);
}

Tensor fill(const Op& op, Graph& graph, const Shape& shape, double a, double b, DType dtype,
            const Where& where) {
  for (const double x : {a, b})
    if (is_float(dtype) && !holds(dtype, x))
      throw DTypeError(in_context(
          "[" + op.name + "] " + std::string(name_of(dtype)) + " cannot hold " + detail::attr_text(x),
          where));
  const Source s = source(graph, where);
  return graph.record(op, std::span(&s.state, 1), RandomAttrs{shape, dtype, a, b, s.stream}, where)[0];
}

void require_float(const Op& op, DType dtype, const Where& where) {
  if (!is_float(dtype))
    throw DTypeError(
        in_context("[" + op.name + "] needs a floating dtype, got " + std::string(name_of(dtype)), where));
}

// Returns the largest number of the type in which random numbers of `dtype` are computed.
double largest_of(DType dtype) {
  return compute_type(dtype) == f64 ? std::numeric_limits<double>::max() : Range::largest_f32;
}

Cost draw_cost(std::span<const Operand>, std::span<const Operand> out, const Attrs&) {
  return {.flops = 40 * static_cast<double>(out[0].layout.numel())};
}

// Defines an op that fills a tensor from a distribution. Its sample uses a fixed stream, so its numbers do
// not depend on earlier nodes of the graph.
const Op* define_fill(const char* name, const char* doc, const char* not_differentiable, DType dtype) {
  const auto sample = [name, dtype](std::span<const Tensor> x) {
    return record(*find_op(name), {x[0].graph().rng()}, RandomAttrs{{2, 3, 5}, dtype, 0.25, 4, 7});
  };
  return define_op({.name = name,
                    .doc = doc,
                    .infer = infer_fill,
                    .not_differentiable = not_differentiable,
                    .samples = [sample]() -> std::vector<Sample> {
                      return {{"3d", {{{2, 3, 5}}}, sample}};
                    },
                    .cost = draw_cost});
}

}  // namespace

// y = keep ⊛ x / (1 - p); the gradient is the same op on z.
const Op& dropout_op =
    *define_op({.name = "dropout",
                .doc = "x, rng → y: y = keep ⊛ x/(1 − p), where an element is kept with probability 1 − p",
                .infer =
                    [](std::span<const Operand> in, const Attrs& a) {
                      detail::require_operands(in, 2);
                      check_options({}, {{"p", a.as<DropoutAttrs>().p, Range::from_below(0, 1)}});
                      detail::require_float(in[0].dtype);
                      detail::require_rng(in[1]);
                      return detail::row_major_output(in[0].dtype, in[0].shape());
                    },
                .vjp = [](const Backprop& g) -> Tensors {
                  return {record(dropout_op, {g.z[0], g.in[1]}, g.attrs), Tensor()};
                },
                .decompose = [](std::span<const Tensor> in, const Attrs& a) -> Tensors {
                  const auto& d = a.as<DropoutAttrs>();
                  const Tensor dropped =
                      record(bernoulli_op, {in[1]}, RandomAttrs{in[0].shape(), boolean, d.p, 0, d.stream});
                  return {where(dropped, 0, in[0] * (1 / (1 - d.p)))};
                },
                .samples = []() -> std::vector<Sample> {
                  return {{"2d", {{{6, 7}}}, [](auto x) {
                             return record(dropout_op, {x[0], x[0].graph().rng()}, DropoutAttrs{0.3, 7});
                           }}};
                },
                .cost = draw_cost,
                .recompute = Recompute::cheap,
                .inplace = {{0, 0}}});

const Op& uniform_op =
    *define_fill("uniform", "rng → y: uniform in [a, b), in f64 and then rounded once, within the interval",
                 "it has no differentiable inputs", f32);
const Op& normal_op =
    *define_fill("normal", "rng → y: normally distributed with mean a and standard deviation b",
                 "it has no differentiable inputs", f32);
const Op& bernoulli_op =
    *define_fill("bernoulli", "rng → y: true with probability a", "its result is boolean", boolean);
const Op& randint_op =
    *define_fill("randint", "rng → y: integers, uniform in [a, b)", "its result is an integer", i64);

Tensor dropout(TensorArg x, double p, bool training) {
  detail::check_options_at(x.where(), "dropout", {{"p", p, Range::between(0, 1)}});
  if (!training || p == 0) return x.tensor();
  if (p == 1) return zeros_like(x);
  const Source s = source(x.tensor().graph(), x.where());
  return record(dropout_op, {x, s.state}, DropoutAttrs{p, s.stream});
}

Tensor uniform(Graph& graph, const Shape& shape, double low, double high, DType dtype, Where where) {
  require_float(uniform_op, dtype, where);
  try {
    uniform_range(dtype, low, high);
  } catch (const Error& e) {
    throw Error(in_context(e.what(), where));
  }
  return fill(uniform_op, graph, shape, low, high, dtype, where);
}
Tensor normal(Graph& graph, const Shape& shape, double mean, double std, DType dtype, Where where) {
  require_float(normal_op, dtype, where);
  const double most = largest_of(dtype);
  detail::check_options_at(
      where, "normal", {{"mean", mean, Range::between(-most, most)}, {"std", std, Range::between(0, most)}});
  return fill(normal_op, graph, shape, mean, std, dtype, where);
}
Tensor bernoulli(Graph& graph, const Shape& shape, double p, Where where) {
  detail::check_options_at(where, "bernoulli", {{"p", p, Range::between(0, 1)}});
  return fill(bernoulli_op, graph, shape, p, 0, boolean, where);
}
Tensor randint(Graph& graph, const Shape& shape, std::int64_t low, std::int64_t high, DType dtype,
               Where where) {
  constexpr std::int64_t exact = std::int64_t{1} << 53;
  if (!is_int(dtype) || !(low < high) || low < -exact || high > exact)
    throw Error(in_context("[randint] needs an integer dtype and low < high within ±2^53, got " +
                               std::string(name_of(dtype)) + ", " + std::to_string(low) + " and " +
                               std::to_string(high),
                           where));
  for (const std::int64_t x : {low, high - 1})
    if (!holds(dtype, static_cast<double>(x)))
      throw DTypeError(in_context(
          "[randint] " + std::string(name_of(dtype)) + " cannot hold " + std::to_string(x), where));
  return fill(randint_op, graph, shape, static_cast<double>(low), static_cast<double>(high), dtype, where);
}

}  // namespace tg
