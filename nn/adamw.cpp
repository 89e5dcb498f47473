#include "nn/adamw.h"

#include <limits>

#include "autograd/gradients.h"
#include "ops/ops.h"

namespace tg {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double largest_scale = 0x1p60;  // where gradients are zero, it would grow for ever

// The gradient of an f32 weight that was used in a half type ends in a cast of it to f32. That is exact, and
// both squared_norm and adamw compute in f32 whatever they read: they take what was cast, and the cast with
// its pass over memory falls away.
Tensor before_cast(const Tensor& z) {
  const Node& maker = z.graph().node_of(z.id());
  if (maker.op != &cast_op || z.dtype() != f32) return z;
  const Tensor narrow = z.graph().tensor(maker.in[0]);
  return narrow.dtype() == bf16 || narrow.dtype() == f16 ? narrow : z;
}

}  // namespace

AdamW::AdamW(const std::vector<Parameter>& params, Options options) : options_(options) {
  if (params.empty()) throw Error("[AdamW] there are no parameters");
  const auto zero = [](const std::string& name, const Shape& shape, DType dtype, Device device) {
    return Parameter("optimizer." + name, Array(shape, dtype), device);
  };
  for (const Parameter& p : params)
    moments_.push_back({p, zero("m." + p.name(), p.shape(), p.dtype(), p.device()),
                        zero("v." + p.name(), p.shape(), p.dtype(), p.device())});
  const Device device = params[0].device();
  step_ = zero("step", {}, f32, device);
  skipped_ = zero("skipped", {}, f32, device);
  if (!options_.loss_scale) return;
  const auto initial = static_cast<float>(options_.loss_scale->initial);
  loss_scale_ = Parameter("optimizer.loss_scale", Array::of<float>({}, {initial}), device);
  good_steps_ = zero("good_steps", {}, f32, device);
  overflowed_ = zero("overflowed", {}, f32, device);
}

AdamW::Update AdamW::minimize(const Tensor& loss) const {
  const Scope scope("optimizer");
  Graph& graph = loss.graph();
  std::vector<Tensor> weights;
  for (const Moments& p : moments_) weights.push_back(graph.param(p.parameter));
  // With loss scaling, gradients of the scaled loss: the scale is what the walk backwards starts from.
  const Tensor loss_scale = options_.loss_scale ? graph.param(loss_scale_) : Tensor();
  std::vector<Tensor> z = gradients(
      loss, weights, loss_scale.defined() ? reshape(cast(loss_scale, loss.dtype()), loss.shape()) : Tensor());
  for (Tensor& z_w : z) z_w = before_cast(z_w);

  Tensor norm = sqrt(squared_norm(z));
  if (loss_scale.defined()) norm = norm / loss_scale;
  const Tensor finite = less(norm, infinity);  // NaN is not
  Tensor factor = options_.clip > 0 ? minimum(options_.clip / norm, 1) : ones_like(norm);
  if (loss_scale.defined()) factor = factor / loss_scale;
  const Tensor scale = where(finite, factor, 0);  // 0: adamw skips the step
  const Tensor step = graph.param(step_) + finite.to(f32);

  Update update;
  update.learning_rate = graph.input("learning_rate", {}, f32);
  update.grad_norm = norm.to(f32);
  Tensor skip = logical_not(finite);
  if (loss_scale.defined()) {
    const Tensor curable = logical_and(less(abs(reshape(loss, {})), infinity), greater(loss_scale, 1));
    adapt_scale(finite, logical_and(skip, curable), update);
    skip = logical_and(skip, logical_not(curable));
  }
  update.skipped = graph.param(skipped_) + skip.to(f32);
  update.assign.push_back({step_, step});
  update.assign.push_back({skipped_, update.skipped});
  std::vector<AdamWTensors> all;
  for (std::size_t i = 0; i < moments_.size(); ++i) {
    const Moments& p = moments_[i];
    const double decay = p.parameter.shape().size() >= 2 ? options_.weight_decay : 0;
    all.push_back({weights[i], z[i], graph.param(p.m), graph.param(p.v), decay});
  }
  const auto after =
      adamw(all, update.learning_rate, step, scale, {options_.beta1, options_.beta2, options_.eps});
  for (std::size_t i = 0; i < moments_.size(); ++i) {
    const auto& [w, m, v] = after[i];
    update.assign.push_back({moments_[i].parameter, w});
    update.assign.push_back({moments_[i].m, m});
    update.assign.push_back({moments_[i].v, v});
  }
  return update;
}

void AdamW::adapt_scale(const Tensor& finite, const Tensor& overflow, Update& update) const {
  const LossScale& o = *options_.loss_scale;
  Graph& graph = finite.graph();
  const Tensor scale = graph.param(loss_scale_), good = graph.param(good_steps_) + 1;
  const Tensor due = greater_equal(good, static_cast<double>(o.interval));
  const Tensor kept = where(due, minimum(scale * o.growth, largest_scale), scale);
  update.loss_scale = where(finite, kept, maximum(scale * o.backoff, 1));
  update.overflowed = graph.param(overflowed_) + overflow.to(f32);
  update.assign.push_back({loss_scale_, update.loss_scale});
  update.assign.push_back({good_steps_, where(logical_and(finite, logical_not(due)), good, 0)});
  update.assign.push_back({overflowed_, update.overflowed});
}

std::vector<Parameter> AdamW::state() const {
  std::vector<Parameter> all;
  for (const Moments& p : moments_) all.push_back(p.m), all.push_back(p.v);
  all.push_back(step_);
  all.push_back(skipped_);
  if (options_.loss_scale) all.insert(all.end(), {loss_scale_, good_steps_, overflowed_});
  return all;
}

}  // namespace tg
