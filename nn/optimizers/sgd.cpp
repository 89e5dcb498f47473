#include <tilegrad/nn/optimizers/sgd.h>

#include <tilegrad/ops/ops.h>

namespace tg::optim {

Sgd::Sgd(const std::vector<Parameter>& params, Options o)
    : Optimizer(params, o.clip, o.loss_scale, o.ranks), momentum_(o.momentum), nesterov_(o.nesterov) {
  check_options("Sgd", {{"momentum", momentum_, Range::from_below(0, 1)}});
  decays_ = decays(o.weight_decay, o.decay);
  if (o.nesterov && o.momentum == 0) throw Error("[Sgd] nesterov needs a momentum, got 0");
  for (std::size_t i = 0; momentum_ != 0 && i < shards().list().size(); ++i)
    momenta_.push_back(zero_beside(i, "momentum"));
}

std::vector<Optimizer::Moment> Sgd::moments() const {
  return momenta_.empty() ? std::vector<Moment>() : std::vector<Moment>{momenta_};
}

std::vector<NewWeight> Sgd::append(const Step& step, std::vector<Assign>& assign) const {
  Graph& graph = step.learning_rate.graph();
  const Tensor taken = not_equal(step.scale, 0);
  std::vector<NewWeight> news;
  for (std::size_t i = 0; i < step.weights.size(); ++i) {
    const Tensor& w = step.weights[i];
    const DType wide = compute_type(w.dtype());
    const Tensor p = cast(w, wide), rate = cast(step.learning_rate, wide);
    Tensor g = cast(step.gradients[i], wide) * cast(step.scale, wide);
    if (decays_[i] != 0) g = g + decays_[i] * p;
    Tensor direction = g;
    if (momentum_ != 0) {
      const Tensor b = graph.param(momenta_[i]);
      const Tensor after = momentum_ * cast(b, wide) + g;
      direction = nesterov_ ? g + momentum_ * after : after;
      assign.push_back({momenta_[i], where(taken, cast(after, b.dtype()), b)});
    }
    news.push_back(with_copy(step, i, where(taken, cast(p - rate * direction, w.dtype()), w)));
  }
  return news;
}

}  // namespace tg::optim
