// Stochastic gradient descent with momentum, as PyTorch's SGD does it: with gradient g and decay λ
//   g' = g + λ·p,  b' = μ·b + g',  p' = p − η·b', or with Nesterov's momentum p − η·(g' + μ·b').
#pragma once

#include <tilegrad/nn/optimizers/optimizer.h>

namespace tg::optim {

class Sgd final : public Optimizer {
 public:
  struct Options {
    double momentum = 0.9;
    bool nesterov = false;
    double weight_decay = 0;  // of parameters with two dimensions or more
    double clip = 1.0;        // largest norm of all gradients together; 0 for none
    std::optional<LossScale> loss_scale = {};
    Decay decay = {};                          // of each parameter, instead of weight_decay
    std::shared_ptr<Communicator> ranks = {};  // which divide the update among them
  };
  // With momentum, allocates a buffer for each parameter, initially zero, on its device. Throws Error for
  // nesterov without momentum.
  Sgd(const std::vector<Parameter>& params, Options options);

 private:
  std::vector<NewWeight> append(const Step& step, std::vector<Assign>& assign) const override;
  std::vector<Moment> moments() const override;  // "optimizer.momentum.<path>" of each

  Moment momenta_;              // none without momentum
  std::vector<double> decays_;  // by shard
  double momentum_;
  bool nesterov_;
};

}  // namespace tg::optim
