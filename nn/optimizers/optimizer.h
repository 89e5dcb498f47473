// Optimizer: what all optimizers share, appended to the graph of the loss: gradients, their norm, clipping by
// it, skipping steps that are not finite, loss scaling. Forward, backward, clipping and update are then one
// Program.
#pragma once

#include <optional>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/nn/layers/params.h>

namespace tg::optim {

// A factor on the loss that keeps gradients in the range of f16, found during training as in
// torch.amp.GradScaler: a step whose gradient overflows is skipped and lowers the factor, and a run of steps
// without one raises it. All of it is part of the step's program.
struct LossScale {
  double initial = 65536;
  double growth = 2, backoff = 0.5;
  std::int64_t interval = 2000;  // consecutive good steps before it grows
};

class Optimizer {
 public:
  // The weight decay of each parameter. A number applies to parameters with two dimensions or more, so that
  // gains and biases never decay.
  using Decay = std::function<double(const Parameter&)>;
  static Decay decay_of_matrices(double decay);

  struct Update {
    Tensor learning_rate;  // [] f32, an input
    Tensor grad_norm;      // [] f32, before clipping, of the loss itself
    Tensor skipped;        // [] f32: steps skipped so far, including this one, except those in overflowed
    Tensor overflowed;     // [] f32: steps skipped so far that a smaller loss scale would have saved
    Tensor loss_scale;     // [] f32, for the next step; this and overflowed only with loss scaling
    std::vector<Assign> assign;
  };

  virtual ~Optimizer() = default;

  // Appends ∂loss/∂parameters, their norm, and the update, whose assignments belong in
  // CompileOptions::assign: compile() throws Error for a program that computes one of them and leaves it out.
  // Throws GradientError if the loss depends on no parameter, and as gradients() does; a parameter that it
  // does not depend on has a gradient of zeros, and decays. A step whose gradient has a number that is not
  // finite leaves parameters, moments and the step count as they were, and is counted. With loss scaling, one
  // whose loss is finite and whose scale is above 1 counts as overflowed, the others as skipped; the scale
  // never falls below 1.
  //
  // `copies`, of parameters() in their order and empty where there is none, get the new weights in their own
  // dtype (nn::HalfCopies).
  Update minimize(const Tensor& loss, const std::vector<Parameter>& copies = {}) const {
    return update(loss, differentiate(loss), copies);
  }

  // Its two halves, which may be in different graphs: gradients of the loss (with loss scaling, of the scaled
  // one) for parameters(), and the update by such gradients, or a mean of them.
  std::vector<Tensor> differentiate(const Tensor& loss) const;
  Update update(const Tensor& loss, const std::vector<Tensor>& gradients,
                const std::vector<Parameter>& copies = {}) const;

  const std::vector<Parameter>& parameters() const { return parameters_; }  // that it trains
  // What a resumed run needs: the optimizer's own ("optimizer.m.<path>", …), "optimizer.step",
  // "optimizer.skipped"; with loss scaling also "optimizer.loss_scale", "optimizer.good_steps",
  // "optimizer.overflowed".
  std::vector<Parameter> state() const;

  // A step, as a derived class appends it.
  struct Step {
    std::vector<Tensor> weights, gradients;  // of parameters(), in their order
    Tensor learning_rate;                    // []
    Tensor number;                           // [] f32, from 1; skipped steps do not count
    Tensor scale;                   // [] to multiply gradients by; 0: the step is skipped and nothing changes
    std::vector<Parameter> copies;  // of weights, in another dtype; empty where there is none
  };
  // "optimizer.<what>.<path>": zeros, of the parameter's shape and dtype.
  static Parameter zero_beside(const Parameter& p, const std::string& what);

 protected:
  // Trains those of the parameters that are not frozen; throws Error if there are none.
  // `clip`: largest norm of all gradients together; 0 for none.
  Optimizer(const std::vector<Parameter>& parameters, double clip,
            const std::optional<LossScale>& loss_scale);

  // Adds the assignments of an update. Copies that it leaves out are cast behind it.
  virtual void append(const Step& step, std::vector<Assign>& assign) const = 0;
  // Assigns the new value of parameters()[place], and of its copy in the same pass over memory.
  void assign_weight(const Step& step, std::size_t place, const Tensor& value,
                     std::vector<Assign>& assign) const;
  virtual std::vector<Parameter> moments() const = 0;  // in the order of state()

 private:
  void adapt_scale(const Tensor& finite, const Tensor& overflow, Update& update) const;

  std::vector<Parameter> parameters_;
  Parameter step_, skipped_;
  Parameter scale_, good_steps_, overflowed_;  // with loss scaling
  double clip_;
  std::optional<LossScale> loss_scale_;
};

}  // namespace tg::optim
