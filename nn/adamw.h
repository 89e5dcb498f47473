// AdamW (Loshchilov and Hutter, 2019) with clipping by global norm, appended to the graph of the loss:
// forward, backward, clipping and update are then one Program.
#pragma once

#include "core/compile.h"
#include "nn/params.h"

namespace tg {

class AdamW {
 public:
  struct Options {
    double beta1 = 0.9, beta2 = 0.99, eps = 1e-8;
    double weight_decay = 0.1;  // of parameters with two dimensions or more; gains and biases never decay
    double clip = 1.0;          // largest norm of all gradients together; 0 for none
  };
  // Makes the moments, zero, beside each parameter.
  AdamW(const std::vector<Parameter>& params, Options options);
  explicit AdamW(const std::vector<Parameter>& params) : AdamW(params, Options{}) {}

  struct Update {
    Tensor learning_rate;  // [] f32, an input
    Tensor grad_norm;      // [] f32, before clipping
    Tensor skipped;        // [] f32: steps skipped so far, this one included
    std::vector<Assign> assign;
  };
  // Appends ∂loss/∂parameters, their norm, and the update. A step whose gradient has a number that is not
  // finite leaves parameters, moments and the step count as they were, and is counted.
  Update minimize(const Tensor& loss) const;

  // "optimizer.m.<path>" and "optimizer.v.<path>" for every parameter, "optimizer.step", "optimizer.skipped".
  std::vector<Parameter> state() const;

 private:
  struct Moments {
    Parameter parameter, m, v;
  };
  std::vector<Moments> moments_;
  Parameter step_, skipped_;
  Options options_;
};

}  // namespace tg
