// Reductions over any axes, and their gradients.
#include "core/graph/op_attrs.h"

#include "ops/common.h"

namespace tg {

namespace {

// Views a result of the reduction with the input's shape.
Tensor stretched(const Tensor& y, const Backprop& g) {
  return stretch(y, g.in[0].shape(), g.attrs.as<ReduceAttrs>().axes);
}

std::vector<OutSpec> reduce_to(DType dtype, const Operand& x, const Attrs& a) {
  const auto& r = a.as<ReduceAttrs>();
  return detail::row_major_output(dtype, detail::reduced_shape(x.shape(), r.axes, r.keepdim));
}

// Sums and products of integers and booleans are i64, as in PyTorch.
std::vector<OutSpec> infer_total(std::span<const Operand> in, const Attrs& a) {
  detail::require_operands(in, 1);
  return reduce_to(is_float(in[0].dtype) ? in[0].dtype : i64, in[0], a);
}

std::vector<OutSpec> infer_float(std::span<const Operand> in, const Attrs& a) {
  detail::require_operands(in, 1);
  detail::require_float(in[0].dtype);
  return reduce_to(in[0].dtype, in[0], a);
}

// Adds one rounding for the division of a mean. The squaring of an addend counts as the first rounding of its
// sum.
double reduce_roundings(std::span<const Operand> in, std::span<const Operand> out, const Attrs&) {
  return detail::f16_split_of(out[0], in[0]) + 1;
}

void check_elements(const Operand& x, const Attrs& a) {
  for (std::int64_t axis : a.as<ReduceAttrs>().axes)
    if (x.shape()[static_cast<int>(axis)] == 0) throw ShapeError("no elements to choose from");
}

std::vector<OutSpec> infer_extreme(std::span<const Operand> in, const Attrs& a) {
  detail::require_operands(in, 1);
  check_elements(in[0], a);
  return reduce_to(in[0].dtype, in[0], a);
}

std::vector<OutSpec> infer_position(std::span<const Operand> in, const Attrs& a) {
  detail::require_operands(in, 1);
  check_elements(in[0], a);
  return reduce_to(i64, in[0], a);
}

// Elements that are equal to the maximum or minimum share its gradient equally, as in torch.amax.
Tensors extreme_gradient(const Backprop& g) {
  // Equal elements are counted in the compute type, because the largest f16 number is 65,504.
  const Tensor &x = g.in[0], equals = equal(x, stretched(g.out[0], g));
  const DType wide = compute_type(x.dtype());
  const Tensor hit = cast(equals, wide), hits = sum(hit, g.attrs.as<ReduceAttrs>().axes, true);
  return {cast(hit * cast(stretched(g.z[0], g), wide) / hits, x.dtype())};
}

// For each element, returns z times the product of all other elements over axes[first], axes[first + 1], …. z
// has size 1 along these axes. The function does not divide. The result and all derivatives are therefore
// right even if elements are zero, infinite or of very different magnitude. An axis is cut into up to 8
// slices. For a slice, the result is the product of the other slices times a gradient with an eighth of the
// size, which is computed in the same way.
Tensor times_others(const Tensor& x, const Tensor& z, const Axes& axes, int first) {
  if (first == axes.size()) return z;
  const std::int64_t axis = axes[first], n = x.size(axis);
  if (n == 1) return times_others(x, z, axes, first + 1);
  constexpr std::int64_t most_slices = 8;
  const std::int64_t length = (n - 1) / most_slices + 1, pieces = (n - 1) / length + 1;
  Dims before = Dims::filled(x.rank(), 0), after = before;
  after[static_cast<int>(axis)] = pieces * length - n;
  const Tensors slices = chunk(pad(x, before, after, 1), pieces, axis);
  const auto count = static_cast<std::size_t>(pieces);
  Tensors others(count);  // per slice: product so far
  Tensor product = slices[0];
  for (std::size_t i = 1; i < count; ++i) {
    others[i] = product;
    product = product * slices[i];
  }
  Tensor behind = slices[count - 1];
  for (std::size_t i = count - 1; i-- > 0;) {
    others[i] = i > 0 ? others[i] * behind : behind;
    if (i > 0) behind = slices[i] * behind;
  }
  const Tensor rest = times_others(product, z, axes, first);
  for (Tensor& t : others) t = t * rest;
  return slice(concat(others, axis), axis, 0, n);
}

Tensors prod_gradient(const Backprop& g) {
  const Tensor& x = g.in[0];
  if (x.numel() == 0) return {zeros_like(x)};
  const Axes& axes = g.attrs.as<ReduceAttrs>().axes;
  const DType wide = compute_type(x.dtype());
  const Shape ones = detail::reduced_shape(x.shape(), axes, true);
  const Tensor z = cast(g.z[0].shape() == ones ? g.z[0] : reshape(g.z[0], ones), wide);
  return {cast(times_others(cast(x, wide), z, axes, 0), x.dtype())};
}

template <Tensor (*f)(TensorArg, const Axes&, bool), Fill::Kind kind>
std::vector<Sample> reduce_samples() {
  const Fill fill = kind == Fill::normal ? Fill{} : Fill{kind, 0.5, 2};
  const auto over = [](const Axes& axes, bool keepdim = false) {
    return [axes, keepdim](std::span<const Tensor> x) { return f(x[0], axes, keepdim); };
  };
  return {{"all", {{{3, 4}, fill}}, over({})},
          {"rows", {{{3, 5}, fill}}, over({1})},
          {"columns", {{{5, 3}, fill}}, over({0})},
          {"middle", {{{2, 3, 4}, fill}}, over({1}, true)},
          {"outer and inner", {{{2, 3, 4}, fill}}, over({0, 2})}};
}

// The samples include rows in which equal elements share the gradient.
template <Tensor (*f)(TensorArg, const Axes&, bool)>
std::vector<Sample> extreme_samples(double sign) {
  std::vector<Sample> all = reduce_samples<f, Fill::distinct>();
  std::vector<double> x{1, 3, 3, 0, 2, 2, 2, 2, 0, -0., -1, -4};
  for (double& v : x) v *= sign;
  constexpr double quarter = 0.25;
  all.push_back({"ties",
                 {{.shape = {3, 4}, .values = x}},
                 [](auto t) { return f(t[0], {1}, false); },
                 Sample::Expected{{{3 * sign, 2 * sign, 0}},
                                  {{0, .5, .5, 0, quarter, quarter, quarter, quarter, .5, .5, 0, 0}}}});
  return all;
}

using Samples = std::vector<Sample>();

const Op* define_extreme(const char* name, const std::string& which, Samples* samples) {
  return define_op(
      {.name = name,
       .doc = "x → y: the " + which +
              " element over the axes, or NaN if there is one. Equal elements share the gradient equally",
       .infer = infer_extreme,
       .vjp = extreme_gradient,
       .samples = samples,
       .fuses_elementwise = true});
}

const Op* define_position(const char* name, const std::string& which, Samples* samples) {
  return define_op({.name = name,
                    .doc = "x → y: row-major index within the axes of the first " + which +
                           " element (i64). NaN counts as " + which,
                    .infer = infer_position,
                    .not_differentiable = "its result is an index",
                    .samples = samples});
}

Tensor reduce(const Op& op, const TensorArg& x, const Axes& axes, bool keepdim) {
  return record(op, {x}, ReduceAttrs{detail::axes_of(x, axes, op.name.c_str()), keepdim});
}

}  // namespace

const Op& sum_op =
    *define_op({.name = "sum",
                .doc = "x → y: y = Σ x over the axes; i64 for integers and booleans",
                .infer = [](std::span<const Operand> in, const Attrs& a) { return infer_total(in, a); },
                .vjp = [](const Backprop& g) -> Tensors { return {stretched(g.z[0], g)}; },
                .samples = reduce_samples<sum, Fill::normal>,
                .roundings = reduce_roundings,
                .fuses_elementwise = true,
                .sums = true});

const Op& mean_op = *define_op({.name = "mean",
                                .doc = "x → y: y = Σ x / n over the axes",
                                .infer = infer_float,
                                .vjp = [](const Backprop& g) -> Tensors {
                                  const double n =
                                      static_cast<double>(g.in[0].numel()) /
                                      static_cast<double>(std::max<std::int64_t>(g.out[0].numel(), 1));
                                  return {stretched(g.z[0] * (1 / n), g)};
                                },
                                .decompose = [](std::span<const Tensor> in, const Attrs& a) -> Tensors {
                                  const auto& r = a.as<ReduceAttrs>();
                                  double n = 1;
                                  for (std::int64_t axis : r.axes) n *= static_cast<double>(in[0].size(axis));
                                  return {sum(in[0], r.axes, r.keepdim) * (1 / n)};
                                },
                                .samples = reduce_samples<mean, Fill::normal>,
                                .roundings = reduce_roundings,
                                .fuses_elementwise = true});

// y = Σ x². It is in f32 for 16-bit dtypes, because it would often exceed their range.
const Op& sum_squares_op =
    *define_op({.name = "sum_squares",
                .doc = "x → y: y = Σ x² over the axes; f32 for 16-bit dtypes",
                .infer =
                    [](std::span<const Operand> in, const Attrs& a) {
                      detail::require_operands(in, 1);
                      detail::require_float(in[0].dtype);
                      return reduce_to(compute_type(in[0].dtype), in[0], a);
                    },
                .vjp = [](const Backprop& g) -> Tensors {
                  return {cast(2 * stretched(g.z[0], g) * g.in[0], g.in[0].dtype())};
                },
                .decompose = [](std::span<const Tensor> in, const Attrs& a) -> Tensors {
                  const Tensor x = cast(in[0], compute_type(in[0].dtype()));
                  return {sum(x * x, a.as<ReduceAttrs>().axes, a.as<ReduceAttrs>().keepdim)};
                },
                .samples = reduce_samples<sum_squares, Fill::normal>,
                .roundings = reduce_roundings,
                .fuses_elementwise = true});

const Op& prod_op =
    *define_op({.name = "prod",
                .doc = "x → y: y = Π x over the axes; i64 for integers and booleans",
                .infer = infer_total,
                .vjp = prod_gradient,
                .samples =
                    [] {
                      std::vector<Sample> all = reduce_samples<prod, Fill::uniform>();
                      all.push_back({"zeros",
                                     {{.shape = {3, 3}, .values = {2, 3, 4, 2, 0, 4, 0, 3, 0}}},
                                     [](auto x) { return prod(x[0], {1}, false); },
                                     Sample::Expected{{{24, 0, 0}}, {{12, 8, 6, 0, 8, 0, 0, 0, 0}}}});
                      return all;
                    },
                .roundings = reduce_roundings,
                .fuses_elementwise = true});
const Op& max_op = *define_extreme("max", "largest", [] { return extreme_samples<max>(1); });
const Op& min_op = *define_extreme("min", "smallest", [] { return extreme_samples<min>(-1); });
const Op& argmax_op = *define_position("argmax", "largest", reduce_samples<argmax, Fill::distinct>);
const Op& argmin_op = *define_position("argmin", "smallest", reduce_samples<argmin, Fill::distinct>);

Tensor sum(TensorArg x, const Axes& axes, bool keepdim) {
  return reduce(sum_op, x, axes, keepdim);
}
Tensor mean(TensorArg x, const Axes& axes, bool keepdim) {
  return reduce(mean_op, x, axes, keepdim);
}
Tensor sum_squares(TensorArg x, const Axes& axes, bool keepdim) {
  return reduce(sum_squares_op, x, axes, keepdim);
}
Tensor prod(TensorArg x, const Axes& axes, bool keepdim) {
  return reduce(prod_op, x, axes, keepdim);
}
Tensor max(TensorArg x, const Axes& axes, bool keepdim) {
  return reduce(max_op, x, axes, keepdim);
}
Tensor min(TensorArg x, const Axes& axes, bool keepdim) {
  return reduce(min_op, x, axes, keepdim);
}

Tensor argmax(TensorArg x, const Axes& axes, bool keepdim) {
  return reduce(argmax_op, x, axes, keepdim);
}
Tensor argmin(TensorArg x, const Axes& axes, bool keepdim) {
  return reduce(argmin_op, x, axes, keepdim);
}

Tensor any(TensorArg x, const Axes& axes, bool keepdim) {
  const Scope scope(x);
  return greater(sum(cast(x, boolean), axes, keepdim), 0);
}
Tensor all(TensorArg x, const Axes& axes, bool keepdim) {
  const Scope scope(x);
  return equal(sum(logical_not(x.tensor()), axes, keepdim), 0);
}

Tensor var(TensorArg x, const Axes& axes, bool keepdim, double correction) {
  const Scope scope(x);
  detail::check_options_at(x.where(), "var", {{"correction", correction, Range::finite()}});
  const DType dtype = x.tensor().dtype();
  const Tensor centred = cast(x, is_float(dtype) ? compute_type(dtype) : dtype);
  const Tensor squares = sum_squares(centred - mean(centred, axes, true), axes, keepdim);
  const double n = static_cast<double>(x.tensor().numel()) /
                   static_cast<double>(std::max<std::int64_t>(squares.numel(), 1));
  return cast(squares * (1 / std::max(n - correction, 0.)), dtype);
}

Tensor sum_to(TensorArg x, const Shape& shape) {
  const Scope scope(x);
  const Shape from = x.tensor().shape();
  const int extra = from.size() - shape.size();
  if (extra < 0 || detail::at_call(x, [&] { return broadcast_shapes(shape, from, "sum_to"); }) != from)
    throw ShapeError(
        in_context("[sum_to] " + shape.text() + " does not broadcast to " + x.tensor().text(), x.where()));
  Axes axes;
  for (int i = 0; i < from.size(); ++i)
    if (i < extra || (shape[i - extra] == 1 && from[i] != 1)) axes.push_back(i);
  return axes.empty() ? x.tensor() : reshape(sum(x, axes, true), shape);
}

Tensor stretch(const Tensor& y, const Shape& shape, const Axes& axes) {
  const Shape ones = detail::reduced_shape(shape, axes, true);
  return expand(y.shape() == ones ? y : reshape(y, ones), shape);
}

Tensor Tensor::sum(const Axes& axes, bool keepdim, Where at) const {
  return tg::sum({*this, at}, axes, keepdim);
}
Tensor Tensor::mean(const Axes& axes, bool keepdim, Where at) const {
  return tg::mean({*this, at}, axes, keepdim);
}
Tensor Tensor::max(const Axes& axes, bool keepdim, Where at) const {
  return tg::max({*this, at}, axes, keepdim);
}
Tensor Tensor::min(const Axes& axes, bool keepdim, Where at) const {
  return tg::min({*this, at}, axes, keepdim);
}

}  // namespace tg
