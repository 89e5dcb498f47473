// AdamW (Loshchilov and Hutter, 2019); with a weight decay of 0 it is Adam.
#pragma once

#include <tilegrad/nn/optimizers/optimizer.h>
#include <tilegrad/ops/ops.h>

namespace tg::optim {

// AdamW's moments of a shard.
struct AdamWState {
  std::size_t shard;
  Parameter m, v;
  double decay;
};
// Appends the update of these shards, in one step of the program, and writes their new weights to `news`, by
// shard.
void append_adamw(const std::vector<AdamWState>& states, const Optimizer::Step& step,
                  const AdamWOptions& options, std::vector<NewWeight>& news, std::vector<Assign>& assign);

class AdamW final : public Optimizer {
 public:
  struct Options {
    double beta1 = 0.9, beta2 = 0.99, eps = 1e-8;
    double weight_decay = 0.1;  // of parameters with two dimensions or more; gains and biases never decay
    double clip = 1.0;          // largest norm of all gradients together; 0 for none
    std::optional<LossScale> loss_scale = {};  // for Precision::f16
    Decay decay = {};                          // of each parameter, instead of weight_decay
    std::shared_ptr<Communicator> ranks = {};  // which divide the update among them
  };
  // Allocates the moments of the shards of each parameter that is not frozen, initially zero, on its device.
  AdamW(const std::vector<Parameter>& params, Options options);
  explicit AdamW(const std::vector<Parameter>& params) : AdamW(params, Options{}) {}

 private:
  std::vector<NewWeight> append(const Step& step, std::vector<Assign>& assign) const override;
  std::vector<Moment> moments() const override;  // "optimizer.m.<path>" and "optimizer.v.<path>" of each

  std::vector<AdamWState> states_;
  AdamWOptions options_;
};

}  // namespace tg::optim
