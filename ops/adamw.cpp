// adamw: one step of Adam with decoupled weight decay (Loshchilov and Hutter, 2019) for a list of parameters,
// as in PyTorch. Let g be the scaled gradient, t the step number (from 1), η the learning rate and λ the
// weight decay:
//
//      m' = β₁·m + (1 - β₁)·g,  v' = β₂·v + (1 - β₂)·g²,
//      p' = (1 - η·λ)·p - η/(1 - β₁ᵗ) · m' / (√v'/√(1 - β₂ᵗ) + eps).
//
// A scale of 0 skips the step: p, m and v stay unchanged, even if g contains NaN. GEMMs of the next step read
// the 16-bit copy of p' (nn/layers/autocast.h).
#include "ops/adamw.h"

#include "ops/common.h"

namespace tg {

namespace {

std::vector<OutSpec> infer(std::span<const Operand> in, const Attrs& attrs) {
  const auto& a = attrs.as<AdamWAttrs>();
  const std::size_t count = a.weight_decay.size(), scalars = adamw_ins * count;
  detail::require_operands(in, scalars + 3);
  for (const double decay : a.weight_decay) AdamWOptions{a.beta1, a.beta2, a.eps, decay}.check({});
  std::vector<OutSpec> out;
  out.reserve(adamw_outs * count);
  for (std::size_t first = 0; first < scalars; first += adamw_ins) {
    const std::span<const Operand> x = in.subspan(first, adamw_ins);  // p, g, m, v
    const DType wide = compute_type(x[0].dtype);
    for (const Operand& o : x) {
      detail::require_float(o.dtype);
      if (o.shape() != x[0].shape())
        throw ShapeError("p, g, m and v differ in shape: " + o.shape().text() + " and " +
                         x[0].shape().text());
      if (o.dtype == f64 && wide != f64) throw DTypeError("f64 operands need a p of type f64");
    }
    for (int i : {0, 2, 3}) out.push_back({x[i].dtype, row_major(x[0].shape())});
    const DType copy = a.copies[first / adamw_ins];
    const bool has_copy = copy != x[0].dtype;
    if (has_copy && (wide != x[0].dtype || (copy != bf16 && copy != f16)))
      throw DTypeError("a copy must be bf16 or f16, and its p f32 or f64");
    out.push_back({copy, row_major(has_copy ? x[0].shape() : Shape{0})});
  }
  for (const Operand& o : in.subspan(scalars))
    if (numel(o.shape()) != 1) throw ShapeError("learning rate, step and scale must have one element");
  return out;
}

// Scalars are computed in f64 and then rounded, because 1 - βᵗ loses too many digits in f32.
Tensors decompose_adamw(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<AdamWAttrs>();
  const std::size_t scalars = adamw_ins * a.weight_decay.size();
  const auto scalar = [&](std::size_t i) { return cast(reshape(in[scalars + i], {}), f64); };
  const Tensor rate = scalar(0), t = scalar(1), scale = scalar(2), taken = not_equal(scale, 0);
  Tensors out;
  for (std::size_t i = 0; i < a.weight_decay.size(); ++i) {
    const std::span<const Tensor> x = in.subspan(adamw_ins * i, adamw_ins);  // p, g, m, v
    const DType dtype = x[0].dtype(), wide = compute_type(dtype);
    const Tensor g = cast(x[1], wide) * cast(scale, wide);
    const Tensor m = a.beta1 * cast(x[2], wide) + (1 - a.beta1) * g;
    const Tensor v = a.beta2 * cast(x[3], wide) + (1 - a.beta2) * g * g;
    const Tensor keep = cast(1 - rate * a.weight_decay[i], wide);
    const Tensor pace = cast(rate / (1 - pow(a.beta1, t)), wide);
    const Tensor correction = cast(rsqrt(1 - pow(a.beta2, t)), wide);
    const Tensor p = keep * cast(x[0], wide) - pace * m / (sqrt(v) * correction + a.eps);
    const Tensor after = where(taken, cast(p, dtype), x[0]);
    out.push_back(after);
    out.push_back(where(taken, cast(m, x[2].dtype()), x[2]));
    out.push_back(where(taken, cast(v, x[3].dtype()), x[3]));
    const DType copy = a.copies[i];
    out.push_back(copy == dtype ? full(after.graph(), {0}, 0, dtype) : cast(after, copy));
  }
  return out;
}

std::vector<Sample> samples() {
  const Fill positive{Fill::uniform, 0.1, 1}, steps{Fill::index, 1, 9};
  const auto moments = [&](const Shape& s) { return std::vector<SampleInput>{{s}, {s}, {s}, {s, positive}}; };
  std::vector<SampleInput> single = moments({3, 5}), list;
  single.push_back({{}, steps, i64});
  for (const Shape& s : {Shape{3, 5}, Shape{}, Shape{0, 2}, Shape{7}, Shape{2, 3, 4}})
    for (const SampleInput& x : moments(s)) list.push_back(x);
  list.push_back({{}, steps, i64});
  const auto step = [](double scale) {
    return [scale](std::span<const Tensor> x) {
      const auto [p, m, v] = adamw(x[0], x[1], x[2], x[3], 0.01, x[4], scale);
      return Tensors{p, m, v};
    };
  };
  const auto step_all = [](std::span<const Tensor> x) {
    std::vector<AdamWTensors> all;
    for (std::size_t i = 0; i + adamw_ins < x.size(); i += adamw_ins)
      all.push_back({x[i], x[i + 1], x[i + 2], x[i + 3], 0.01 * static_cast<double>(i)});
    Tensors out;
    for (const AdamWResults& r : adamw(all, 0.01, x.back(), 0.5)) out.insert(out.end(), {r.p, r.m, r.v});
    return out;
  };
  std::vector<SampleInput> first = single;
  first.back().values = {1};
  return {{"2d", single, step(0.5)},
          {"first step", first, step(0.5)},
          {"skipped", single, step(0)},
          {"list", list, step_all}};
}

}  // namespace

const Op& adamw_op =
    *define_op({.name = "adamw",
                .doc = "p, g, m, v, …, η, t, scale → p′, m′, v′, copy, …: with g scaled, m′ = β₁·m + (1 − "
                       "β₁)·g, v′ = β₂·v + (1 − β₂)·g², p′ = (1 − η·λ)·p − η/(1 − β₁ᵗ)·m′/(√v′/√(1 − β₂ᵗ) + "
                       "eps), copy = p′ in a 16-bit dtype, for a list of parameters",
                .infer = infer,
                .not_differentiable = "it is an optimizer's update",
                .decompose = decompose_adamw,
                .samples = samples,
                .cost = [](std::span<const Operand>, std::span<const Operand> out, const Attrs&) -> Cost {
                  double elements = 0;
                  for (const Operand& o : out) elements += static_cast<double>(o.layout.numel()) / adamw_outs;
                  return {.flops = 15 * elements};
                },
                .inplace = {{0, 0}, {1, 2}, {2, 3}},
                .each = {adamw_outs, adamw_ins}});

void AdamWOptions::check(std::string_view who) const {
  constexpr Range share = Range::from_below(0, 1);
  check_options(who, {{"beta1", beta1, share},
                      {"beta2", beta2, share},
                      {"eps", eps, Range::at_least(std::numeric_limits<float>::min())},
                      {"weight_decay", weight_decay, Range::at_least(0)}});
}

std::vector<AdamWResults> adamw(const std::vector<AdamWTensors>& all, TensorArg learning_rate, TensorArg step,
                                TensorArg scale, const AdamWOptions& o) {
  const Where where = learning_rate.where();
  // Only options that are numbers are checked here. The values of tensors are known only when the program
  // runs.
  for (const auto& [name, x, range] :
       {std::tuple("learning_rate", &learning_rate, Range::at_least(0)),
        std::tuple("step", &step, Range::at_least(1)), std::tuple("scale", &scale, Range::at_least(0))})
    if (x->is_number()) detail::check_options_at(where, "adamw", {{name, x->number(), range}});
  if (all.empty()) throw Error(in_context("[adamw] got no parameters, expected at least one", where));
  Graph& graph = all[0].p.graph();
  AdamWAttrs attrs{o.beta1, o.beta2, o.eps, {}, {}};
  Tensors in;
  for (const AdamWTensors& x : all) {
    in.insert(in.end(), {x.p, x.g, x.m, x.v});
    attrs.weight_decay.push_back(x.weight_decay);
    attrs.copies.push_back(x.copy.value_or(x.p.dtype()));
  }
  // Numbers are recorded in f64, because the dtype of p may be too narrow for 0.001.
  for (const TensorArg* x : {&learning_rate, &step, &scale})
    in.push_back(x->is_number() ? full(graph, {}, x->number(), f64, where) : x->tensor());
  const Tensors out = graph.record(adamw_op, in, std::move(attrs), where);
  std::vector<AdamWResults> results;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::span<const Tensor> own = std::span(out).subspan(adamw_outs * i, adamw_outs);
    results.push_back({own[0], own[1], own[2], all[i].copy ? own[3] : Tensor()});
  }
  return results;
}

std::array<Tensor, 3> adamw(TensorArg p, TensorArg g, TensorArg m, TensorArg v, TensorArg learning_rate,
                            TensorArg step, TensorArg scale, const AdamWOptions& o) {
  const Scope scope(p);
  const AdamWResults r = adamw({{p.tensor(), g.tensor(), m.tensor(), v.tensor(), o.weight_decay}},
                               learning_rate, step, scale, o)[0];
  return {r.p, r.m, r.v};
}

}  // namespace tg
