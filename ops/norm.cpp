// layer_norm: y = (x - μ)/σ ⊛ w + b, where μ and σ² are the mean and variance of the last axis and σ = √(σ² +
// eps). rms_norm: y = x/σ ⊛ w, where σ² is the mean of squares. Both are fused in both directions:
//      g = z ⊛ w, x̂ = (x - μ)/σ:  z_x = (g - mean(g) - x̂ ⊛ mean(g ⊛ x̂))/σ   (rms_norm: without mean(g)),
//      z_w = Σ z ⊛ x̂ and z_b = Σ z over rows.
#include "ops/norm.h"

#include "ops/common.h"

namespace tg {

extern const Op &layer_norm_op, &layer_norm_backward_op, &rms_norm_op, &rms_norm_backward_op;

namespace {

void check_norm(const Operand& x, std::span<const Operand> weights) {
  detail::require_float(x.dtype);
  detail::check_rank_at_least(x, 1);
  for (const Operand& w : weights) {
    detail::require_float(w.dtype);
    if (w.shape() != Shape{x.shape().back()})
      throw ShapeError("weight and bias must have the size of the last axis");
    if (w.dtype != weights[0].dtype) throw DTypeError("weight and bias differ in dtype");
    if (w.dtype == f64 && x.dtype != f64) throw DTypeError("weight and bias are f64, x is not: cast them");
  }
}

template <int statistics>
std::vector<OutSpec> infer_forward(std::span<const Operand> in, const Attrs& a) {
  const auto& n = a.as<NormAttrs>();
  detail::require_operands(in, std::size_t{1} + n.weight + n.bias);
  check_norm(in[0], in.subspan(1));
  std::vector<OutSpec> out = detail::row_major_output(in[0].dtype, in[0].shape());
  for (int i = 0; i < statistics; ++i)
    out.push_back({compute_type(in[0].dtype), row_major(detail::without_last_axis(in[0].shape()))});
  return out;
}

template <int statistics>
std::vector<OutSpec> infer_backward(std::span<const Operand> in, const Attrs& a) {
  const auto& n = a.as<NormAttrs>();
  detail::require_operands(in, 2 + statistics + n.weight);
  check_norm(in[0], in.subspan(2 + statistics));
  if (in[1].shape() != in[0].shape() || in[1].dtype != in[0].dtype) throw ShapeError("x and z differ");
  for (const Operand& s : in.subspan(2, statistics))
    if (s.shape() != detail::without_last_axis(in[0].shape()) || s.dtype != compute_type(in[0].dtype))
      throw ShapeError("needs the statistics of the forward");
  std::vector<OutSpec> out = detail::row_major_output(in[0].dtype, in[0].shape());
  const DType weights = n.weight ? in.back().dtype : in[0].dtype;
  for (int i = 0; i < n.weight_gradient + n.bias; ++i)
    out.push_back({weights, row_major({in[0].shape().back()})});
  return out;
}

template <bool centred>
Tensors decompose_forward(std::span<const Tensor> in, const Attrs& a) {
  const auto& n = a.as<NormAttrs>();
  const Tensor x = cast(in[0], compute_type(in[0].dtype()));
  const Tensor mu = mean(x, {-1}), d = centred ? x - unsqueeze(mu, -1) : x;
  const Tensor scale = rsqrt(mean(d * d, {-1}) + n.eps);
  Tensor y = d * unsqueeze(scale, -1);
  if (n.weight) y = y * cast(in[1], x.dtype());
  if (n.bias) y = y + cast(in[2], x.dtype());
  y = cast(y, in[0].dtype());
  return centred ? Tensors{y, mu, scale} : Tensors{y, scale};
}

// Depends only on x, z and the weight. It recomputes the statistics from x, so a second derivative does not
// need gradients of the statistics.
template <bool centred>
Tensors decompose_backward(std::span<const Tensor> in, const Attrs& a) {
  const auto& n = a.as<NormAttrs>();
  const DType dtype = in[0].dtype(), wide = compute_type(dtype);
  const Tensor x = cast(in[0], wide), z = cast(in[1], wide);
  const Tensor d = centred ? x - mean(x, {-1}, true) : x;
  const Tensor scale = rsqrt(mean(d * d, {-1}, true) + n.eps), hat = d * scale;
  const Tensor g = n.weight ? z * cast(in.back(), wide) : z;
  Tensor z_x = g - hat * mean(g * hat, {-1}, true);
  if (centred) z_x = z_x - mean(g, {-1}, true);
  Tensors out{cast(z_x * scale, dtype)};
  const DType weights = n.weight ? in.back().dtype() : dtype;
  const Shape row{x.size(-1)};
  if (n.weight_gradient) out.push_back(cast(sum_to(z * hat, row), weights));
  if (n.bias) out.push_back(cast(sum_to(z, row), weights));
  return out;
}

template <bool centred>
Tensors gradient(const Backprop& g) {
  const auto& n = g.attrs.as<NormAttrs>();
  for (std::size_t i = 1; i < g.z.size(); ++i)
    if (g.z[i].defined()) throw GradientError("the statistics of a normalisation have no gradient");
  NormAttrs attrs = n;
  attrs.weight_gradient = n.weight && g.needed[1];
  attrs.bias = n.bias && g.needed[2];
  Tensors in{g.in[0], g.z[0]};
  in.insert(in.end(), g.out.begin() + 1, g.out.end());
  if (n.weight) in.push_back(g.in[1]);
  const Op& backward = centred ? layer_norm_backward_op : rms_norm_backward_op;
  Tensors z = g.in[0].graph().record(backward, in, attrs, {});
  Tensors all{z[0]};
  std::size_t next = 1;
  if (n.weight) all.push_back(attrs.weight_gradient ? z[next++] : Tensor());
  if (n.bias) all.push_back(attrs.bias ? z[next] : Tensor());
  return all;
}

// The roundings of the mean, the centered square, the sum of squares, 1/σ, and three products.
double norm_roundings(std::span<const Operand> in, std::span<const Operand>, const Attrs&) {
  return 2 * static_cast<double>(in[0].shape().back()) + 6;
}

// The roundings of x̂ and its products, and of a sum. The sum is over a row or, for the gradient of a weight,
// over all rows.
double norm_backward_roundings(std::span<const Operand> in, std::span<const Operand>, const Attrs&) {
  const std::int64_t n = in[0].shape().back(), rows = in[0].layout.numel() / std::max<std::int64_t>(1, n);
  return static_cast<double>(std::max(n, rows)) + 6;
}

Tensors record_norm(const Op& op, const TensorArg& x, const Tensor& weight, const Tensor& bias, double eps) {
  if (bias.defined() && !weight.defined())
    throw Error(in_context("[" + op.name + "] a bias needs a weight", x.where()));
  detail::check_options_at(x.where(), op.name, {{"eps", eps, Range::at_least(0)}});
  Tensors in{x.tensor()};
  if (weight.defined()) in.push_back(weight);
  if (bias.defined()) in.push_back(bias);
  return x.tensor().graph().record(op, in, NormAttrs{eps, weight.defined(), bias.defined()}, x.where());
}

// Calls the backward op as a function of x, z and w.
template <bool centred>
Tensors sample_backward(std::span<const Tensor> x) {
  const bool weighted = x.size() > 2;
  const Op &op = centred ? layer_norm_op : rms_norm_op,
           &backward = centred ? layer_norm_backward_op : rms_norm_backward_op;
  const Tensors made = record_norm(op, x[0], weighted ? x[2] : Tensor(), {}, 1e-5);
  Tensors in{x[0], x[1]};
  in.insert(in.end(), made.begin() + 1, made.end());
  if (weighted) in.push_back(x[2]);
  return x[0].graph().record(backward, in, NormAttrs{1e-5, weighted, centred, weighted}, {});
}

// Defines layer_norm or rms_norm. The parameters are the differences between the two norms.
template <bool centred>
const Op* define_norm(const char* name, const char* doc, std::vector<Sample> (*samples)()) {
  return define_op({.name = name,
                    .doc = doc,
                    .infer = infer_forward < centred ? 2 : 1 >,
                    .vjp = gradient<centred>,
                    .decompose = decompose_forward<centred>,
                    .samples = samples,
                    .cost = detail::flops_each<10>,
                    .roundings = norm_roundings,
                    .recompute = Recompute::cheap,
                    .inplace = {{0, 0}}});
}

template <bool centred>
const Op* define_backward(const char* name, const char* doc) {
  return define_op({.name = name,
                    .doc = doc,
                    .infer = infer_backward < centred ? 2 : 1 >,
                    .decompose = decompose_backward<centred>,
                    .samples = []() -> std::vector<Sample> {
                      return {{"weight", {{{2, 3, 6}}, {{2, 3, 6}}, {{6}}}, sample_backward<centred>},
                              {"plain", {{{4, 7}}, {{4, 7}}}, sample_backward<centred>}};
                    },
                    .cost = detail::flops_each<10>,
                    .roundings = norm_backward_roundings,
                    .accepts_sum = true,
                    .inplace = {{0, 1}, {0, 0}}});
}

std::vector<Sample> layer_norm_samples() {
  return {
      {"weight and bias", {{{2, 3, 6}}, {{6}}, {{6}}}, [](auto x) { return layer_norm(x[0], x[1], x[2]); }},
      {"weight", {{{4, 19}}, {{19}}}, [](auto x) { return layer_norm(x[0], x[1]); }},
      {"plain", {{{4, 7}}}, [](auto x) { return layer_norm(x[0]); }}};
}

std::vector<Sample> rms_norm_samples() {
  return {{"weight", {{{2, 3, 6}}, {{6}}}, [](auto x) { return rms_norm(x[0], x[1]); }},
          {"plain", {{{4, 19}}}, [](auto x) { return rms_norm(x[0]); }}};
}

}  // namespace

const Op& layer_norm_op = *define_norm<true>(
    "layer_norm",
    "x [..., n], w?, b? → y, μ, 1/σ: y = (x − μ)/σ ⊛ w + b with μ = mean(x) and "
    "σ² = mean((x − μ)²) + eps over the last axis; y = b if squares overflow, as in PyTorch",
    layer_norm_samples);
const Op& rms_norm_op = *define_norm<false>(
    "rms_norm",
    "x [..., n], w? → y, 1/σ: y = x/σ ⊛ w with σ² = mean(x²) + eps over the last axis; y = "
    "0 if squares overflow, as in PyTorch",
    rms_norm_samples);
const Op& layer_norm_backward_op =
    *define_backward<true>("layer_norm_backward",
                           "x, z, μ, 1/σ, w? → z_x, z_w?, z_b?: g = z ⊛ w, x̂ = (x − μ)/σ, z_x = (g "
                           "− mean(g) − x̂ ⊛ mean(g ⊛ x̂))/σ, z_w = Σ z ⊛ x̂, z_b = Σ z");
const Op& rms_norm_backward_op = *define_backward<false>(
    "rms_norm_backward",
    "x, z, 1/σ, w? → z_x, z_w?: g = z ⊛ w, x̂ = x/σ, z_x = (g − x̂ ⊛ mean(g ⊛ x̂))/σ, z_w = Σ z ⊛ x̂");

const NormAttrs* norm_of(const Op& op, const Attrs& attrs) {
  return &op == &layer_norm_op || &op == &rms_norm_op ? &attrs.as<NormAttrs>() : nullptr;
}

Tensor layer_norm(TensorArg x, TensorArg weight, TensorArg bias, double eps) {
  return record_norm(layer_norm_op, x, weight.optional(), bias.optional(), eps)[0];
}
Tensor rms_norm(TensorArg x, TensorArg weight, double eps) {
  return record_norm(rms_norm_op, x, weight.optional(), {}, eps)[0];
}

}  // namespace tg
