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
    Decay decay = {};  // of each parameter, instead of weight_decay
  };
  // With momentum, allocates a buffer for each parameter, initially zero, on its device. Throws Error for
  // nesterov without momentum.
  Sgd(const std::vector<Parameter>& params, Options options);

 private:
  void append(const Step& step, std::vector<Assign>& assign) const override;
  std::vector<Parameter> moments() const override { return momenta_; }  // "optimizer.momentum.<path>" of each

  std::vector<Parameter> momenta_;
  std::vector<double> decays_;
  double momentum_;
  bool nesterov_;
};

}  // namespace tg::optim
