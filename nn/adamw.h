// AdamW (Loshchilov and Hutter, 2019) with clipping by global norm, appended to the graph of the loss:
// forward, backward, clipping and update are then one Program.
#pragma once

#include <optional>

#include "core/compile.h"
#include "nn/params.h"

namespace tg {

// A factor on the loss that keeps gradients in the range of f16, found while training as
// torch.amp.GradScaler does: a step whose gradient overflows is skipped and lowers the factor, and a run of
// steps without one raises it. All of it is part of the step's program.
struct LossScale {
  double initial = 65536;
  double growth = 2, backoff = 0.5;
  std::int64_t interval = 2000;  // good steps, one after the other, before it grows
};

class AdamW {
 public:
  struct Options {
    double beta1 = 0.9, beta2 = 0.99, eps = 1e-8;
    double weight_decay = 0.1;  // of parameters with two dimensions or more; gains and biases never decay
    double clip = 1.0;          // largest norm of all gradients together; 0 for none
    std::optional<LossScale> loss_scale = {};  // for Precision::f16
  };
  // Makes the moments, zero, beside each parameter.
  AdamW(const std::vector<Parameter>& params, Options options);
  explicit AdamW(const std::vector<Parameter>& params) : AdamW(params, Options{}) {}

  struct Update {
    Tensor learning_rate;  // [] f32, an input
    Tensor grad_norm;      // [] f32, before clipping, of the loss itself
    Tensor skipped;        // [] f32: steps skipped so far, this one included, without those overflowed
    Tensor overflowed;     // [] f32: steps skipped so far that a smaller loss scale would have saved
    Tensor loss_scale;     // [] f32, for the next step; this and overflowed only with loss scaling
    std::vector<Assign> assign;
  };
  // Appends ∂loss/∂parameters, their norm, and the update. A step whose gradient has a number that is not
  // finite leaves parameters, moments and the step count as they were, and is counted. With loss scaling, one
  // whose loss is finite and whose scale is above 1 counts as overflowed, the others as skipped; the scale
  // never falls below 1.
  Update minimize(const Tensor& loss) const;

  // "optimizer.m.<path>" and "optimizer.v.<path>" for every parameter, "optimizer.step", "optimizer.skipped";
  // with loss scaling also "optimizer.loss_scale", "optimizer.good_steps", "optimizer.overflowed".
  std::vector<Parameter> state() const;

 private:
  struct Moments {
    Parameter parameter, m, v;
  };
  void adapt_scale(const Tensor& finite, const Tensor& overflow, Update& update) const;

  std::vector<Moments> moments_;
  Parameter step_, skipped_;
  Parameter loss_scale_, good_steps_, overflowed_;  // with loss scaling
  Options options_;
};

}  // namespace tg
