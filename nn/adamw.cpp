#include "nn/adamw.h"

#include <limits>

#include "autograd/gradients.h"
#include "ops/ops.h"

namespace tg {

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
}

AdamW::Update AdamW::minimize(const Tensor& loss) const {
  const Scope scope("optimizer");
  Graph& graph = loss.graph();
  std::vector<Tensor> weights;
  for (const Moments& p : moments_) weights.push_back(graph.param(p.parameter));
  const std::vector<Tensor> z = gradients(loss, weights);

  Tensor squares;
  for (const Tensor& z_w : z) {
    const Tensor own = sum_squares(z_w);
    squares = squares.defined() ? squares + own : own;
  }
  const Tensor norm = sqrt(squares);
  const Tensor finite = less(norm, std::numeric_limits<double>::infinity());  // NaN is not
  const Tensor clipped = options_.clip > 0 ? minimum(options_.clip / norm, 1) : ones_like(norm);
  const Tensor scale = where(finite, clipped, 0);  // 0: adamw skips the step
  const Tensor step = graph.param(step_) + finite.to(f32);

  Update update;
  update.learning_rate = graph.input("learning_rate", {}, f32);
  update.grad_norm = norm.to(f32);
  update.skipped = graph.param(skipped_) + logical_not(finite).to(f32);
  update.assign = {{step_, step}, {skipped_, update.skipped}};
  for (std::size_t i = 0; i < moments_.size(); ++i) {
    const Moments& p = moments_[i];
    const double decay = p.parameter.shape().size() >= 2 ? options_.weight_decay : 0;
    const auto [w, m, v] = adamw(weights[i], z[i], graph.param(p.m), graph.param(p.v), update.learning_rate,
                                 step, scale, {options_.beta1, options_.beta2, options_.eps, decay});
    update.assign.push_back({p.parameter, w});
    update.assign.push_back({p.m, m});
    update.assign.push_back({p.v, v});
  }
  return update;
}

std::vector<Parameter> AdamW::state() const {
  std::vector<Parameter> all;
  for (const Moments& p : moments_) all.push_back(p.m), all.push_back(p.v);
  all.push_back(step_);
  all.push_back(skipped_);
  return all;
}

}  // namespace tg
