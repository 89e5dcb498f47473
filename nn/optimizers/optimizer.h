// Optimizer: the parts that all optimizers share. It appends the gradients, their norm, clipping and loss
// scaling to the graph of the loss, and skips non-finite steps. Forward, backward, clipping and update then
// form one Program. Ranks can divide the update and its state.
#pragma once

#include <map>
#include <optional>

#include <tilegrad/core/base/range.h>
#include <tilegrad/core/compile/compile.h>
#include <tilegrad/nn/layers/params.h>
#include <tilegrad/nn/optimizers/shards.h>

namespace tg::optim {

// Dynamic loss scaling, as in torch.amp.GradScaler: a factor on the loss that keeps gradients in the range of
// f16. A step whose gradient overflows is skipped and lowers the factor. A number of consecutive finite steps
// raises it. All of it is part of the step's program.
struct LossScale {
  double initial = 65536;            // first factor, 1 to 2^60
  double growth = 2, backoff = 0.5;  // factors of changes: growth ≥ 1, 0 < backoff ≤ 1
  std::int64_t interval = 2000;      // consecutive finite steps before it grows, 1 to 2^24

  // Throws Error that names an option out of range.
  void check() const;
};

// The range of learning rates that schedules and programs accept: 0 or more, finite in f32.
inline constexpr Range learning_rates = Range::at_least(0);

// The base class of optimizers.
class Optimizer {
 public:
  // Returns the weight decay of a parameter.
  using Decay = std::function<double(const Parameter&)>;
  // Returns `decay` for parameters with two or more dimensions and 0 for others, so that gains and biases
  // never decay.
  static Decay decay_of_matrices(double decay);

  // Tensors of one update, for a program that computes it.
  struct Update {
    Tensor loss;           // the given loss; with ranks, its sum over the ranks, in f32 for 16-bit types
    Tensor learning_rate;  // input, [] f32
    Tensor grad_norm;      // [] f32, norm of the unscaled gradients before clipping
    Tensor skipped;        // [] f32, number of skipped steps, including this one, without `overflowed` steps
    Tensor overflowed;     // [] f32, number of steps skipped because the loss scale was too large
    Tensor loss_scale;     // [] f32, scale of the next step; this and `overflowed` only with loss scaling
    std::vector<Assign> assign;  // for CompileOptions::assign
  };

  virtual ~Optimizer() = default;

  // Appends ∂loss/∂parameters, their norm, and the update. CompileOptions::assign must contain the update's
  // assignments. If a program computes an assignment that is missing there, compile() throws Error. Throws
  // GradientError if the loss depends on no parameter, and the errors of gradients(). If the loss does not
  // depend on a parameter, the parameter's gradients are zero, but it decays. If a gradient is not finite,
  // the step changes no parameters and moments, and the step count does not increase. Such a step is counted
  // as skipped. With loss scaling, it is counted as overflowed instead if its loss is finite and its scale is
  // above 1. The scale never falls below 1.
  //
  // If several optimizers with different parameters use the same loss, either all of them step or all skip.
  // If one gradient is not finite, none of them changes anything. Their loss scales change together. A
  // program with one of the updates also computes the gradient norms for the other updates. Each optimizer
  // clips by the norm of its own gradients, like clip_grad_norm_.
  //
  // `copies` are low-precision copies of parameters() in the same order, or empty Parameters
  // (nn::LowPrecisionCopies). The update writes the new weights to them in their dtype.
  Update minimize(const Tensor& loss, const std::vector<Parameter>& copies = {}) const {
    return update(loss, differentiate(loss), {.reading = {.copies = copies}});
  }

  // Options of update().
  struct UpdateOptions {
    // Copies as in minimize(). With ranks, also specifies which weights are read only through their copies.
    WeightReading reading = {};
    // With ranks: reduce a few gradients at a time, as soon as they are ready, and then free them.
    bool hoist_collectives = false;
    bool norm_of_blocks = false;  // bitwise identical norm for any number of ranks that divides 16
  };
  // First half of minimize(). Returns the gradients of the loss for parameters(). With loss scaling, they are
  // the gradients of the scaled loss.
  std::vector<Tensor> differentiate(const Tensor& loss) const;
  // Second half of minimize(), which may be in a different graph. Appends the update. `gradients` are results
  // of differentiate(), or their mean over several batches. With ranks, each rank passes its own gradients
  // and loss, and the update uses their sums over the ranks.
  Update update(const Tensor& loss, const std::vector<Tensor>& gradients, const UpdateOptions& options) const;

  // The trained parameters.
  const std::vector<Parameter>& parameters() const { return shards_.parameters(); }
  // The parts of the parameters that this rank updates.
  const detail::Shards& shards() const { return shards_; }
  // Returns the parameters that a resumed run needs: the optimizer's own ("optimizer.m.<path>", …),
  // "optimizer.step" and "optimizer.skipped". With loss scaling, also "optimizer.loss_scale",
  // "optimizer.good_steps" and "optimizer.overflowed". With ranks, they are this rank's shards.
  std::vector<Parameter> state() const;
  // As state(), for the state of all ranks together. Parameters that the ranks divide are on the CPU. Their
  // values are undefined until gather_state() is called.
  std::vector<Parameter> whole_state() const;
  // Fills `to`, a result of whole_state(). All ranks must call it; `to` is empty on ranks that do not need
  // the values.
  void gather_state(const std::vector<Parameter>& to) const;
  // Sets the state of all ranks from values of whole_state(), in its order. Throws ShapeError or DTypeError
  // if a value does not fit. Throws Error if the number of values is wrong, or if no optimizer can reach a
  // counter or a loss scale. Nothing has then changed.
  void set_state(std::span<const Array> values) const;

  // The inputs of append(), by shard.
  struct Step {
    std::vector<Tensor> weights, gradients;    // of the rank's shards
    std::vector<std::optional<DType>> copies;  // dtype of the low-precision copy of each new weight
    Tensor learning_rate;                      // [] f32
    Tensor number;                             // [] f32, step number starting at 1, without skipped steps
    Tensor scale;  // [] factor for gradients; 0: the step is skipped and nothing changes
  };
  // A value that an optimizer stores for each element, by shard; empty for shards without it.
  using Moment = std::vector<Parameter>;
  // Returns zeros of the shard's shape and dtype, named "optimizer.<what>.<path>".
  Parameter zeros_like_shard(std::size_t shard, const std::string& what) const;

 protected:
  // Trains the given parameters except frozen ones. Throws Error if all are frozen. `clip` is the maximum
  // norm of all gradients together; 0: no clipping. Throws Error for a clip or a loss scale out of range. If
  // `ranks` are given, they divide the update of parameters for which `is_divisible` returns true. It must do
  // so only if the elements of the parameter are updated independently.
  Optimizer(const std::vector<Parameter>& parameters, double clip, const std::optional<LossScale>& loss_scale,
            std::shared_ptr<Communicator> ranks = {},
            const std::function<bool(const Parameter&)>& is_divisible = {});

  // The parameter that a shard belongs to.
  const Parameter& parameter_of(std::size_t shard) const { return shards_.parameter_of(shard); }
  // Returns the weight decay of each shard's parameter. It is computed by `each`. If `each` is empty,
  // matrices have `weight_decay` and other parameters do not decay. Throws Error for a decay that is negative
  // or not finite.
  std::vector<double> decays(double weight_decay, const Decay& each) const;
  // Returns a shard's new weight and its copy, both computed in the same pass over memory.
  static NewWeight with_copy(const Step& step, std::size_t shard, const Tensor& weight);
  // As zeros_like_shard(), and adds the result to the state. Moments of a shard are ordered by `what`.
  Parameter add_moment(std::size_t shard, const std::string& what);
  // Appends the new weight of each shard, and adds the assignments of moments to `assign`.
  virtual std::vector<NewWeight> append(const Step& step, std::vector<Assign>& assign) const = 0;

 private:
  std::vector<Parameter> counters() const;
  template <class F>
  void each_moment(F f) const;
  void check_count(const std::string& who, std::size_t count) const;
  void check_state(std::span<const Array> values) const;
  void adapt_scale(const Tensor& finite, const Tensor& overflow, Update& update) const;

  detail::Shards shards_;
  std::map<std::string, Moment> moments_;
  Parameter step_, skipped_;
  Parameter scale_, good_steps_, overflowed_;  // only with loss scaling
  double clip_;
  std::optional<LossScale> loss_scale_;
};

}  // namespace tg::optim
