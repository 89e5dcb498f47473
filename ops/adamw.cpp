// adamw: one step of Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as PyTorch does it. With
// g scaled, t the number of the step, from 1, η the learning rate and λ the decay:
//   m' = β₁·m + (1 - β₁)·g,  v' = β₂·v + (1 - β₂)·g²,
//   p' = (1 - η·λ)·p - η/(1 - β₁ᵗ) · m' / (√v'/√(1 - β₂ᵗ) + eps).
// A scale of 0 skips the step: p, m and v stay what they are, whatever g holds.
#include "ops/adamw.h"

#include "ops/common.h"

namespace tg {

namespace {

std::vector<OutSpec> infer(std::span<const Operand> in, const Attrs&) {
  const DType wide = compute_type(in[0].dtype);
  for (int i = 0; i < 4; ++i) {
    detail::want_float(in[i].dtype);
    if (in[i].shape() != in[0].shape()) throw ShapeError("p, g, m and v differ in shape");
    if (in[i].dtype == f64 && wide != f64) throw DTypeError("f64 operands with another p");
  }
  for (int i = 4; i < 7; ++i)
    if (numel(in[i].shape()) != 1) throw ShapeError("learning rate, step and scale must have one element");
  std::vector<OutSpec> out;
  for (int i : {0, 2, 3}) out.push_back({in[i].dtype, row_major(in[0].shape())});
  return out;
}

// Scalars in f64, then rounded: 1 - βᵗ loses too many digits in f32.
Tensors decompose_adamw(std::span<const Tensor> in, const Attrs& attrs) {
  const auto& a = attrs.as<AdamWAttrs>();
  const DType dtype = in[0].dtype(), wide = compute_type(dtype);
  const auto scalar = [](const Tensor& t) { return cast(reshape(t, {}), f64); };
  const Tensor rate = scalar(in[4]), t = scalar(in[5]);
  const Tensor g = cast(in[1], wide) * cast(scalar(in[6]), wide);
  const Tensor m = a.beta1 * cast(in[2], wide) + (1 - a.beta1) * g;
  const Tensor v = a.beta2 * cast(in[3], wide) + (1 - a.beta2) * g * g;
  const Tensor keep = cast(1 - rate * a.weight_decay, wide);
  const Tensor pace = cast(rate / (1 - pow(a.beta1, t)), wide);
  const Tensor correction = cast(rsqrt(1 - pow(a.beta2, t)), wide);
  const Tensor p = keep * cast(in[0], wide) - pace * m / (sqrt(v) * correction + a.eps);
  const Tensor taken = not_equal(scalar(in[6]), 0);
  return {where(taken, cast(p, dtype), in[0]), where(taken, cast(m, in[2].dtype()), in[2]),
          where(taken, cast(v, in[3].dtype()), in[3])};
}

}  // namespace

const Op adamw_op{.name = "adamw",
                  .infer = infer,
                  .not_differentiable = "it is an optimizer's update",
                  .decompose = decompose_adamw,
                  .samples = []() -> std::vector<Sample> {
                    const Fill positive{Fill::uniform, 0.1, 1};
                    const std::vector<SampleInput> inputs = {
                        {{3, 5}}, {{3, 5}}, {{3, 5}}, {{3, 5}, positive}, {{}, {Fill::index, 1, 9}, i64}};
                    const auto step = [](double scale) {
                      return [scale](std::span<const Tensor> x) {
                        const auto [p, m, v] = adamw(x[0], x[1], x[2], x[3], 0.01, x[4], scale);
                        return Tensors{p, m, v};
                      };
                    };
                    return {{"2d", inputs, step(0.5)}, {"skipped", inputs, step(0)}};
                  },
                  .cost = [](std::span<const Operand> in, std::span<const Operand>, const Attrs&) -> Cost {
                    return {.flops = 15 * static_cast<double>(in[0].layout.numel())};
                  },
                  .inplace = {{0, 0}, {1, 2}, {2, 3}}};

std::array<Tensor, 3> adamw(In p, const Tensor& g, const Tensor& m, const Tensor& v, In learning_rate,
                            In step, In scale, const AdamWOptions& o) {
  // Numbers become f64, for p may be of a type that has no room for 0.001.
  const auto scalar = [&](const In& x) {
    return x.is_number() ? full(p.tensor().graph(), {}, x.number(), f64, p.where()) : x.tensor();
  };
  const Tensors out = record_all(adamw_op, {p, g, m, v, scalar(learning_rate), scalar(step), scalar(scale)},
                                 AdamWAttrs{o.beta1, o.beta2, o.eps, o.weight_decay});
  return {out[0], out[1], out[2]};
}

}  // namespace tg
