// Pointwise ops: out_i = f(a_i, b_i, c_i), so the Jacobian is diagonal and z_a = z ⊛ ∂f/∂a [Stratos,
// Efficient Attention §C.1]. The functions first broadcast with expand, whose gradient is a sum.
#include <cmath>
#include <limits>
#include <string_view>

#include "ops/common.h"

namespace tg {

namespace {

using detail::broadcast_pair;

void check_one_dtype(std::span<const Operand> in) {
  for (const Operand& x : in)
    if (x.dtype != in[0].dtype) throw DTypeError("operands differ in dtype");
}

std::vector<OutSpec> same_float(std::span<const Operand> in, const Attrs&) {
  detail::require_float(in[0].dtype);
  check_one_dtype(in);
  return detail::pointwise_output(in, in[0].dtype);
}

std::vector<OutSpec> same_number(std::span<const Operand> in, const Attrs&) {
  if (in[0].dtype == boolean) throw DTypeError("needs numbers, not booleans");
  check_one_dtype(in);
  return detail::pointwise_output(in, in[0].dtype);
}

std::vector<OutSpec> truth(std::span<const Operand> in, const Attrs&) {
  check_one_dtype(in);
  return detail::pointwise_output(in, boolean);
}

// A shape rule that first checks the number of operands.
template <std::size_t count, auto rule>
std::vector<OutSpec> operands(std::span<const Operand> in, const Attrs& a) {
  detail::require_operands(in, count);
  return rule(in, a);
}

Fill filled(Fill::Kind kind) {
  return kind == Fill::normal ? Fill{} : Fill{kind, 0.4, 2};
}

// A point at which a difference quotient cannot determine the gradient: a tie, a kink, 0⁰ or an infinity. The
// documentation and PyTorch define the gradient there. Lists the operands, the result and the gradient for
// each operand.
struct SpecialPoint {
  const char *op, *name;
  std::vector<std::vector<double>> operands;
  std::vector<double> y;
  std::vector<std::vector<double>> z;
};

const std::vector<SpecialPoint>& special_points() {
  constexpr double infinity = std::numeric_limits<double>::infinity(), log2 = 0.69314718055994530942;
  static const auto& points = *new std::vector<SpecialPoint>{
      {"maximum", "ties", {{1, 2, 3, 0}, {1, 3, 2, -0.}}, {1, 3, 3, 0}, {{.5, 0, 1, .5}, {.5, 1, 0, .5}}},
      {"minimum", "ties", {{1, 2, 3, 0}, {1, 3, 2, -0.}}, {1, 2, 2, 0}, {{.5, 1, 0, .5}, {.5, 0, 1, .5}}},
      {"pow",
       "zeros",
       {{0, 0, 0, 2, 2}, {0, 1, 2, 0, 1}},
       {1, 0, 0, 1, 2},
       {{0, 1, 0, 0, 1}, {0, 0, 0, log2, 2 * log2}}},
      {"relu", "kink", {{-1, 0, -0., 2}}, {0, 0, 0, 2}, {{0, 0, 0, 1}}},
      {"abs", "kink", {{-1, 0, -0., 2}}, {1, 0, 0, 2}, {{-1, 0, 0, 1}}},
      {"sign", "jump", {{-1, 0, -0., 2}}, {-1, 0, 0, 1}, {{0, 0, 0, 0}}},
      {"exp", "infinity", {{-infinity, 0}}, {0, 1}, {{0, 1}}},
      {"sigmoid", "far out", {{-1e4, 1e4, -infinity}}, {0, 1, 0}, {{0, 0, 0}}},
      {"tanh", "far out", {{-1e4, 1e4, -infinity}}, {-1, 1, -1}, {{0, 0, 0}}},
      {"erf", "far out", {{-100, 100}}, {-1, 1}, {{0, 0}}},
      {"silu", "far out", {{-1e4, 1e4}}, {0, 1e4}, {{0, 1}}},
      {"gelu", "far out", {{-100, 100}}, {0, 100}, {{0, 1}}},
      {"gelu_tanh", "far out", {{-100, 100}}, {0, 100}, {{0, 1}}},
  };
  return points;
}

template <class Call>
std::vector<Sample> with_special_points(const char* op, std::vector<Sample> samples, Call call) {
  for (const SpecialPoint& p : special_points()) {
    if (std::string_view(p.op) != op) continue;
    Sample s{p.name, {}, call, Sample::Expected{{p.y}, p.z}};
    for (const std::vector<double>& x : p.operands)
      s.inputs.push_back({.shape = {static_cast<std::int64_t>(x.size())}, .values = x});
    samples.push_back(std::move(s));
  }
  return samples;
}

template <Tensor (*f)(TensorArg), Fill::Kind kind>
std::vector<Sample> unary_samples(const char* op) {
  const auto call = [](std::span<const Tensor> x) { return f(x[0]); };
  return with_special_points(
      op, {{"3d", {{{2, 3, 5}, filled(kind)}}, call}, {"empty", {{{0, 3}, filled(kind)}}, call}}, call);
}

template <Tensor (*f)(TensorArg, TensorArg), Fill::Kind ka, Fill::Kind kb>
std::vector<Sample> binary_samples(const char* op) {
  const auto call = [](std::span<const Tensor> x) { return f(x[0], x[1]); };
  const Fill a = filled(ka), b = filled(kb);
  return with_special_points(op,
                             {{"same", {{{3, 4}, a}, {{3, 4}, b}}, call},
                              {"broadcast", {{{2, 3, 4}, a}, {{3, 1}, b}}, call},
                              {"scalar", {{{5}, a}, {{}, b}}, call}},
                             call);
}

// maximum and minimum: the selected operand gets the gradient. If both operands are equal, each gets half of
// the gradient.
Tensors shared_by_winner(const Backprop& b, const Tensor& a_wins) {
  const Tensor &z = b.z[0], tie = equal(b.in[0], b.in[1]), half = z * 0.5;
  return {where(tie, half, where(a_wins, z, 0)), where(tie, half, where(a_wins, 0, z))};
}

// z_b = -z·a/b² is computed from z_a = z / b.
Tensors div_gradient(const Backprop& g) {
  const Tensor za = g.z[0] / g.in[1];
  return {za, g.needed[1] ? -(za * g.out[0]) : Tensor()};
}

// The smallest magnitude whose reciprocal the dtype can represent.
double least_invertible(DType t) {
  return t == f64 ? 0x1p-1023 : t == f16 ? 0x1.002p-16 : 0x1.02p-128;
}

// ∂(a^b)/∂a = b·a^(b-1). It is 0 if b is 0, even if 1/a is infinite. ∂(a^b)/∂b = a^b·log a. It is 0 if a or
// a^b is 0. Elements that `where` does not select are computed from a harmless base. Otherwise second
// derivatives would contain 0·∞. Both conditions are comparisons of floating numbers, because such
// comparisons are fused. The boolean `and` of two comparisons would be stored.
Tensors pow_gradient(const Backprop& g) {
  const Tensor &a = g.in[0], &b = g.in[1];
  Tensor za, zb;
  if (g.needed[0]) {
    const Tensor is_one = less(where(equal(b, 0), abs(a), 1), least_invertible(a.dtype()));
    za = g.z[0] * where(is_one, 0, b * pow(where(is_one, 1, a), b - 1));
  }
  if (g.needed[1]) {
    const Tensor is_zero = equal(where(equal(g.out[0], 0), 0, a), 0);
    zb = g.z[0] * where(is_zero, 0, g.out[0] * log(where(is_zero, 1, a)));
  }
  return {za, zb};
}

// f(x) in the compute type. Beyond ±limit, f and all of its derivatives are 0 in f64, so x is clamped.
// Without the clamp, polynomials of a large x overflow, and ∞·0 is NaN.
Tensor fading(const Tensor& x, double limit, Tensor (*f)(const Tensor& x)) {
  return cast(f(clamp(cast(x, compute_type(x.dtype())), -limit, limit)), x.dtype());
}

// d erf/dx = 2/√π·exp(-x²)
Tensor erf_slope(const Tensor& any_x) {
  return fading(any_x, 30, [](const Tensor& x) { return 1.12837916709551257390 * exp(-(x * x)); });
}

// f″ of f = x·σ(x): σ′·(2 + x·(1 - 2σ)) with σ′ = σ·(1 - σ)
Tensor silu_curvature(const Tensor& any_x) {
  return fading(any_x, 800, [](const Tensor& x) {
    const Tensor s = sigmoid(x);
    return s * (1 - s) * (2 + x * (1 - 2 * s));
  });
}

// f″ of f = x·Φ(x): φ(x)·(2 - x²)
Tensor gelu_curvature(const Tensor& any_x) {
  return fading(any_x, 40, [](const Tensor& x) {
    const Tensor x2 = x * x;
    return 0.39894228040143267794 * exp(x2 * -0.5) * (2 - x2);
  });
}

// f″ of f = x·σ(w), w = √(8/π)·(x + 0.044715 x³): σ′·(2w′ + x·((1 - 2σ)·w′² + w″))
Tensor gelu_tanh_curvature(const Tensor& any_x) {
  return fading(any_x, 30, [](const Tensor& x) {
    const double c = 1.59576912160573071176;
    const Tensor x2 = x * x, s = sigmoid(c * x * (1 + 0.044715 * x2));
    const Tensor dw = c * (1 + 3 * 0.044715 * x2), ddw = c * 6 * 0.044715 * x;
    return s * (1 - s) * (2 * dw + x * ((1 - 2 * s) * dw * dw + ddw));
  });
}

}  // namespace

// Each line below defines an op: the formula of the result y, the shape rule, the operands of samples, and
// the gradient. The gradient is an expression of z, y and the operands, which are a and b, or x.
#define TG_BINARY_OP(op, sign, has_jumps, formula, rule, fill_a, fill_b, ...)                             \
  Tensor op(TensorArg a, TensorArg b);                                                                    \
  const Op& op##_op =                                                                                     \
      *define_op({.name = #op,                                                                            \
                  .doc = "a, b → y: y = " formula,                                                        \
                  .infer = operands<2, rule>,                                                             \
                  .vjp = [](const Backprop& g) -> Tensors {                                               \
                    [[maybe_unused]] const Tensor &z = g.z[0], &a = g.in[0], &b = g.in[1], &y = g.out[0]; \
                    return __VA_ARGS__;                                                                   \
                  },                                                                                      \
                  .samples = [] { return binary_samples<op, Fill::fill_a, Fill::fill_b>(#op); },          \
                  .pointwise = true,                                                                      \
                  .jumps = has_jumps,                                                                     \
                  .adds = sign});                                                                         \
  Tensor op(TensorArg a, TensorArg b) {                                                                   \
    const auto [x, y] = broadcast_pair(op##_op, a, b);                                                    \
    return record(op##_op, {{x, a.where()}, {y, a.where()}});                                             \
  }

#define TG_BINARY(op, ...) TG_BINARY_OP(op, 0, false, __VA_ARGS__)

#define TG_UNARY_OP(op, function, is_unrounded, has_jumps, formula, rule, fill, gradient)                   \
  Tensor op(TensorArg x);                                                                                   \
  const Op& op##_op = *define_op({.name = #op,                                                              \
                                  .doc = "x → y: y = " formula,                                             \
                                  .infer = operands<1, rule>,                                               \
                                  .vjp = [](const Backprop& g) -> Tensors {                                 \
                                    [[maybe_unused]] const Tensor &z = g.z[0], &x = g.in[0], &y = g.out[0]; \
                                    return {gradient};                                                      \
                                  },                                                                        \
                                  .samples = [] { return unary_samples<op, Fill::fill>(#op); },             \
                                  .pointwise = true,                                                        \
                                  .jumps = has_jumps,                                                       \
                                  .epilogue = Epilogue::function,                                           \
                                  .unrounded_epilogue = is_unrounded});                                     \
  Tensor op(TensorArg x) {                                                                                  \
    return record(op##_op, {x});                                                                            \
  }

#define TG_UNARY(op, ...) TG_UNARY_OP(op, none, false, false, __VA_ARGS__)

#define TG_COMPARISON(op, formula)                                                                   \
  Tensor op(TensorArg a, TensorArg b);                                                               \
  const Op& op##_op =                                                                                \
      *define_op({.name = #op,                                                                       \
                  .doc = "a, b → y: y = [" formula "]",                                              \
                  .infer = operands<2, truth>,                                                       \
                  .not_differentiable = "its result is boolean",                                     \
                  .samples = [] { return binary_samples<op, Fill::distinct, Fill::distinct>(#op); }, \
                  .pointwise = true});                                                               \
  Tensor op(TensorArg a, TensorArg b) {                                                              \
    const auto [x, y] = broadcast_pair(op##_op, a, b);                                               \
    return record(op##_op, {{x, a.where()}, {y, a.where()}});                                        \
  }

TG_BINARY_OP(add, 1, false, "a + b", same_number, normal, normal, {z, z})
TG_BINARY_OP(sub, -1, false, "a − b", same_number, normal, normal, {z, g.needed[1] ? -z : Tensor()})
TG_BINARY(mul, "a ⊛ b", same_number, normal, normal,
          {g.needed[0] ? z * b : Tensor(), g.needed[1] ? z* a : Tensor()})
TG_BINARY(div, "a / b", same_float, normal, off_zero, div_gradient(g))
TG_BINARY(pow, "aᵇ", same_float, uniform, normal, pow_gradient(g))
TG_BINARY_OP(remainder, 0, true, "a − b·⌊a/b⌋, which has the sign of b", same_float, off_zero, off_zero,
             {z, g.needed[1] ? -(z* floor(a / b)) : Tensor()})
TG_BINARY(maximum, "the larger of a and b; NaN if either is NaN", same_number, normal, normal,
          shared_by_winner(g, greater(a, b)))
TG_BINARY(minimum, "the smaller of a and b; NaN if either is NaN", same_number, normal, normal,
          shared_by_winner(g, less(a, b)))

TG_UNARY(neg, "−x", same_number, normal, -z)
TG_UNARY(abs, "|x|", same_number, off_zero, z* sign(x))
TG_UNARY(sign, "−1, 0 or 1", same_number, off_zero, zeros_like(z))
TG_UNARY_OP(floor, none, false, true, "⌊x⌋, the largest integer that is at most x", same_float, off_zero,
            zeros_like(z))
TG_UNARY(sqrt, "√x", same_float, uniform, z * 0.5 / y)
TG_UNARY(rsqrt, "1/√x", same_float, uniform, z * -0.5 * y / x)
TG_UNARY(exp, "eˣ", same_float, normal, z* y)
TG_UNARY(log, "log x, to base e", same_float, uniform, z / x)
TG_UNARY(sin, "sin x", same_float, normal, z* cos(x))
TG_UNARY(cos, "cos x", same_float, normal, -(z* sin(x)))
TG_UNARY(tanh, "tanh x", same_float, normal, z*(1 - y * y))
TG_UNARY(erf, "erf x = 2/√π·∫₀ˣ exp(−t²) dt", same_float, normal, z* erf_slope(x))
TG_UNARY(sigmoid, "σ(x) = 1/(1 + e⁻ˣ)", same_float, normal, z* y*(1 - y))
TG_UNARY(relu, "max(x, 0); its gradient at 0 is 0", same_float, off_zero, where(greater(x, 0), z, 0))
TG_UNARY(silu, "x·σ(x)", same_float, normal, z* silu_slope(x))
TG_UNARY_OP(gelu, gelu, false, false, "x·Φ(x) = x/2·(1 + erf(x/√2))", same_float, normal, z* gelu_slope(x))
TG_UNARY_OP(gelu_tanh, gelu_tanh, true, false, "x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))", same_float, normal,
            z* gelu_tanh_slope(x))
TG_UNARY(silu_slope, "d silu/dx", same_float, normal, z* silu_curvature(x))
TG_UNARY(gelu_slope, "d gelu/dx", same_float, normal, z* gelu_curvature(x))
TG_UNARY(gelu_tanh_slope, "d gelu_tanh/dx", same_float, normal, z* gelu_tanh_curvature(x))

TG_COMPARISON(equal, "a = b")
TG_COMPARISON(not_equal, "a ≠ b")
TG_COMPARISON(less, "a < b")
TG_COMPARISON(less_equal, "a ≤ b")
TG_COMPARISON(greater, "a > b")
TG_COMPARISON(greater_equal, "a ≥ b")
TG_COMPARISON(logical_and, "a and b")
TG_COMPARISON(logical_or, "a or b")

const Op& logical_not_op =
    *define_op({.name = "logical_not",
                .doc = "x → y: y = [not x]",
                .infer = operands<1, truth>,
                .not_differentiable = "its result is boolean",
                .samples = [] { return unary_samples<logical_not, Fill::off_zero>("logical_not"); },
                .pointwise = true});
Tensor logical_not(TensorArg x) {
  return record(logical_not_op, {x});
}

const Op& where_op =
    *define_op({.name = "where",
                .doc = "condition, a, b → y: y = a if the condition is true, otherwise b",
                .infer =
                    [](std::span<const Operand> in, const Attrs&) {
                      detail::require_operands(in, 3);
                      if (in[0].dtype != boolean) throw DTypeError("the condition must be boolean");
                      check_one_dtype(in.subspan(1));
                      if (in[0].shape() != in[1].shape()) throw ShapeError("operands differ in shape");
                      return detail::pointwise_output(in.subspan(1), in[1].dtype);
                    },
                .vjp = [](const Backprop& g) -> Tensors {
                  return {Tensor(), where(g.in[0], g.z[0], 0), where(g.in[0], 0, g.z[0])};
                },
                .samples = []() -> std::vector<Sample> {
                  const auto call = [](std::span<const Tensor> x) { return where(x[0], x[1], x[2]); };
                  return {{"same", {{{3, 4}, {Fill::bits}, boolean}, {{3, 4}}, {{3, 4}}}, call},
                          {"broadcast", {{{3, 1}, {Fill::bits}, boolean}, {{2, 1, 4}}, {{}}}, call}};
                },
                .pointwise = true});

Tensor where(TensorArg condition, TensorArg a, TensorArg b) {
  const Scope scope(condition);
  if (a.is_number() && b.is_number())  // as in PyTorch
    return where(condition, {full(condition.tensor().graph(), {}, a.number(), f32), a.where()}, b);
  auto [x, y] = broadcast_pair(where_op, a, b);
  const Shape shape = detail::at_call(
      condition, [&] { return broadcast_shapes(condition.tensor().shape(), x.shape(), "where"); });
  const auto fit = [&](const Tensor& t) { return t.shape() == shape ? t : expand(t, shape); };
  return record(where_op, {fit(condition.tensor()), fit(x), fit(y)});
}

Tensor clamp(TensorArg x, double low, double high) {
  const Scope scope(x);
  if (!(low <= high))
    throw Error(in_context("[clamp] low " + std::to_string(low) + " is above high " + std::to_string(high),
                           x.where()));
  const DType t = x.tensor().dtype();
  for (const double bound : {low, high})
    if (!holds(is_float(t) ? compute_type(t) : t, bound))
      throw DTypeError(in_context(
          "[clamp] " + x.tensor().text() + " cannot hold the bound " + detail::attr_text(bound), x.where()));
  return where(less(x, low), low, where(greater(x, high), high, x));
}

// Gated units. Each becomes one fused step.
Tensor swiglu(TensorArg gate, TensorArg value) {
  const Scope scope(gate);
  return silu(gate) * value;
}

Tensor swiglu(TensorArg packed) {
  const Scope scope(packed);
  const Tensor& x = packed.tensor();
  if (x.rank() == 0 || x.size(-1) % 2 != 0)
    throw ShapeError(
        in_context("[swiglu] needs an even last axis: gates, then values; got " + x.text(), packed.where()));
  const std::int64_t n = x.size(-1) / 2;
  return swiglu(slice(x, -1, 0, n), slice(x, -1, n, 2 * n));
}

}  // namespace tg
