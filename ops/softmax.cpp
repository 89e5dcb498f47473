// softmax P = exp(x - ξ) with ξ = log Σ exp x along one axis [Ye, Online Softmax §2], log_softmax x - ξ,
// logsumexp ξ, and their gradients [Stratos, Efficient Attention §C.1 eq. 2]:
//   softmax: z_x = P ⊛ (z - Σ P ⊛ z),  log_softmax: z_x = z - P·Σ z,  logsumexp: z_x = P·z.
#include "ops/index.h"

#include <cmath>
#include <limits>
#include <utility>

#include "ops/common.h"

namespace tg {

extern const Op &softmax_backward_op, &log_softmax_backward_op;

namespace {

template <std::size_t count>
std::vector<OutSpec> infer_like(std::span<const Operand> in, const Attrs& a) {
  detail::require_operands(in, count);
  a.as<SoftmaxAttrs>();
  detail::require_float(in[0].dtype);
  for (const Operand& x : in)
    if (x.dtype != in[0].dtype) throw DTypeError("operands differ in dtype");
  return detail::pointwise_output(in, in[0].dtype);
}

std::int64_t axis_of(const Attrs& a) {
  return a.as<SoftmaxAttrs>().axis;
}

// Roundings of x - max x, its exponential, their sum, and the last operation.
double softmax_roundings(std::span<const Operand> in, std::span<const Operand>, const Attrs& a) {
  return static_cast<double>(in[0].shape()[static_cast<int>(axis_of(a))]) + 3;
}

Tensor wide(const Tensor& x) {
  return cast(x, compute_type(x.dtype()));
}

// x - max x, and exp of it, in the compute type.
Tensor lowered(const Tensor& x, std::int64_t axis) {
  return wide(x) - stop_gradient(max(wide(x), {axis}, true));
}

Tensor record_along(const Op& op, const TensorArg& x, std::int64_t axis) {
  return record(op, {x}, SoftmaxAttrs{detail::axis_of(x, axis, op.name.c_str())});
}

template <Tensor (*f)(TensorArg, std::int64_t)>
std::vector<Sample> row_samples() {
  return {{"rows", {{{3, 19}}}, [](auto x) { return f(x[0], -1); }},
          {"middle", {{{2, 5, 3}}}, [](auto x) { return f(x[0], 1); }}};
}

// Each row has one large logit, at a different position per row. The result y and the gradient z are known
// without a difference quotient. If a kernel's row maximum misses the logit, exp overflows.
constexpr std::size_t logits = 100;
constexpr double other_logits = logits - 1;
// A matrix with the number `on` on the diagonal and `off` elsewhere.
std::vector<double> diagonal(double on, double off) {
  std::vector<double> x(logits * logits, off);
  for (std::size_t i = 0; i < logits; ++i) x[i * logits + i] = on;
  return x;
}
template <Tensor (*f)(TensorArg, std::int64_t)>
Sample one_logit(const char* name, double logit, std::vector<double> y, std::vector<double> z) {
  const auto n = static_cast<std::int64_t>(logits);
  return {name,
          {{.shape = {n, n}, .values = diagonal(logit, 0)}},
          [](auto x) { return f(x[0], -1); },
          Sample::Expected{{std::move(y)}, {std::move(z)}}};
}

std::vector<Sample> softmax_samples() {
  std::vector<Sample> all = row_samples<softmax>();
  all.push_back(one_logit<softmax>("one large logit", 1e4, diagonal(1, 0), diagonal(0, 0)));
  all.push_back(
      one_logit<softmax>("one logit far below", -1e4, diagonal(0, 1 / other_logits), diagonal(0, 0)));
  return all;
}

std::vector<Sample> log_softmax_samples() {
  std::vector<Sample> all = row_samples<log_softmax>();
  const double log_others = std::log(other_logits);
  all.push_back(
      one_logit<log_softmax>("one large logit", 1e4, diagonal(0, -1e4), diagonal(-other_logits, 1)));
  all.push_back(one_logit<log_softmax>("one logit far below", -1e4, diagonal(-1e4 - log_others, -log_others),
                                       diagonal(1, 1 - logits / other_logits)));
  return all;
}

Tensor logsumexp_of_axis(TensorArg x, std::int64_t axis) {
  return logsumexp(x, {axis});
}

std::vector<Sample> logsumexp_samples() {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<Sample> all{{"rows", {{{3, 19}}}, [](auto x) { return logsumexp(x[0], {1}); }},
                          {"all", {{{2, 5}}}, [](auto x) { return logsumexp(x[0]); }},
                          {"outer and inner", {{{2, 3, 4}}}, [](auto x) {
                             return logsumexp(x[0], {0, 2}, true);
                           }}};
  all.push_back(
      one_logit<logsumexp_of_axis>("one large logit", 1e4, std::vector<double>(logits, 1e4), diagonal(1, 0)));
  all.push_back(one_logit<logsumexp_of_axis>("one logit far below", -1e4,
                                             std::vector<double>(logits, std::log(other_logits)),
                                             diagonal(0, 1 / other_logits)));
  all.push_back({"nothing to sum",
                 {{.shape = {2, 2}, .values = {-infinity, -infinity, -infinity, 3}}},
                 [](auto x) { return logsumexp(x[0], {1}); },
                 Sample::Expected{{{-infinity, 3}}, {{0, 0, 0, 1}}}});
  return all;
}

std::vector<Sample> backward_samples(const Op& op) {
  return {{"rows", {{{3, 7}}, {{3, 7}}}, [&op](auto x) {
             return record(op, {x[0], x[1]}, SoftmaxAttrs{1});
           }}};
}

}  // namespace

const Op& softmax_op = *define_op({.name = "softmax",
                                   .doc = "x → P: P = exp(x − ξ) with ξ = log Σ exp x along an axis",
                                   .infer = infer_like<1>,
                                   .vjp = [](const Backprop& g) -> Tensors {
                                     return {record(softmax_backward_op, {g.out[0], g.z[0]}, g.attrs)};
                                   },
                                   .decompose = [](std::span<const Tensor> in, const Attrs& a) -> Tensors {
                                     const Tensor e = exp(lowered(in[0], axis_of(a)));
                                     return {cast(e / sum(e, {axis_of(a)}, true), in[0].dtype())};
                                   },
                                   .samples = softmax_samples,
                                   .cost = detail::flops_each<25>,
                                   .roundings = softmax_roundings,
                                   .inplace = {{0, 0}}});

const Op& log_softmax_op =
    *define_op({.name = "log_softmax",
                .doc = "x → y: y = x − ξ with ξ = log Σ exp x along an axis",
                .infer = infer_like<1>,
                .vjp = [](const Backprop& g) -> Tensors {
                  return {record(log_softmax_backward_op, {g.out[0], g.z[0]}, g.attrs)};
                },
                .decompose = [](std::span<const Tensor> in, const Attrs& a) -> Tensors {
                  const Tensor d = lowered(in[0], axis_of(a));
                  return {cast(d - log(sum(exp(d), {axis_of(a)}, true)), in[0].dtype())};
                },
                .samples = log_softmax_samples,
                .cost = detail::flops_each<25>,
                .roundings = softmax_roundings,
                .inplace = {{0, 0}}});

const Op& softmax_backward_op =
    *define_op({.name = "softmax_backward",
                .doc = "P, z → z_x: z_x = P ⊛ (z − Σ P ⊛ z)",
                .infer = infer_like<2>,
                .decompose = [](std::span<const Tensor> in, const Attrs& a) -> Tensors {
                  const Tensor p = wide(in[0]), z = wide(in[1]);
                  return {cast(p * (z - sum(p * z, {axis_of(a)}, true)), in[0].dtype())};
                },
                .samples = [] { return backward_samples(softmax_backward_op); },
                .cost = detail::flops_each<25>,
                .roundings = softmax_roundings,
                .inplace = {{0, 0}, {0, 1}}});
const Op& log_softmax_backward_op =
    *define_op({.name = "log_softmax_backward",
                .doc = "y, z → z_x: z_x = z − exp(y)·Σ z",
                .infer = infer_like<2>,
                .decompose = [](std::span<const Tensor> in, const Attrs& a) -> Tensors {
                  const Tensor z = wide(in[1]);
                  const Tensor z_x = z - exp(wide(in[0])) * sum(z, {axis_of(a)}, true);
                  return {cast(z_x, in[0].dtype())};
                },
                .samples = [] { return backward_samples(log_softmax_backward_op); },
                .cost = detail::flops_each<25>,
                .roundings = softmax_roundings,
                .inplace = {{0, 0}, {0, 1}}});

const Op& logsumexp_op =
    *define_op({.name = "logsumexp",
                .doc = "x → ξ: ξ = log Σ exp x along an axis, which is kept with size 1",
                .infer =
                    [](std::span<const Operand> in, const Attrs& a) {
                      detail::require_operands(in, 1);
                      detail::require_float(in[0].dtype);
                      Shape shape = in[0].shape();
                      shape[static_cast<int>(axis_of(a))] = 1;
                      return detail::row_major_output(in[0].dtype, shape);
                    },
                .vjp = [](const Backprop& g) -> Tensors {
                  // If every x is -∞, ξ is -∞, too. The gradient is then computed as exp(x - 0) = 0, not as
                  // exp(NaN). The sum of all exp(x - ξ) would be 1 without rounding, but the rounding error
                  // is large for a large ξ.
                  const Tensor empty = equal(g.out[0], -INFINITY);
                  const Tensor p = exp(wide(g.in[0]) - wide(where(empty, 0, g.out[0])));
                  const Tensor all = where(empty, 1, sum(p, {axis_of(g.attrs)}, true));
                  return {cast(wide(g.z[0]) * (p / all), g.in[0].dtype())};
                },
                .decompose = [](std::span<const Tensor> in, const Attrs& a) -> Tensors {
                  // A row in which every x is −∞ has ξ = −∞ and the gradient 0, not the gradient of log 0.
                  const Tensor x = wide(in[0]), top = stop_gradient(max(x, {axis_of(a)}, true));
                  const Tensor empty = equal(top, -INFINITY), shift = where(empty, 0, top);
                  const Tensor total = where(empty, 1, sum(exp(x - shift), {axis_of(a)}, true));
                  return {cast(where(empty, -INFINITY, log(total) + shift), in[0].dtype())};
                },
                .samples = logsumexp_samples,
                .cost = detail::flops_each<25>,
                .roundings = softmax_roundings});

Tensor softmax(TensorArg x, std::int64_t axis) {
  return record_along(softmax_op, x, axis);
}
Tensor log_softmax(TensorArg x, std::int64_t axis) {
  return record_along(log_softmax_op, x, axis);
}

Tensor logsumexp(TensorArg x, const Axes& axes, bool keepdim) {
  const Scope scope(x);
  const Tensor t = x.tensor();
  const Axes over = detail::axes_of(x, axes, "logsumexp");
  Tensor y = t;
  if (over.size() != 1) {  // move several axes to the end and merge them
    Axes order;
    Shape kept = detail::reduced_shape(t.shape(), over, false);
    for (int i = 0; i < t.rank(); ++i)
      if (!over.contains(i)) order.push_back(i);
    for (std::int64_t a : over) order.push_back(a);
    kept.push_back(t.numel() / std::max<std::int64_t>(numel(kept), 1));
    y = reshape(permute(t, order), kept);
  }
  y = record(logsumexp_op, {y}, SoftmaxAttrs{over.size() == 1 ? over[0] : y.rank() - 1});
  const Shape shape = detail::reduced_shape(t.shape(), over, keepdim);
  return y.shape() == shape ? y : view(y, shape);
}

}  // namespace tg
