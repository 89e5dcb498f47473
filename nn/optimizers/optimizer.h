// Optimizer: what all optimizers share, appended to the graph of the loss: gradients, their norm, clipping by
// it, skipping steps that are not finite, loss scaling. Forward, backward, clipping and update are then one
// Program. Ranks can divide the update and its state among them.
#pragma once

#include <map>
#include <optional>

#include <tilegrad/core/base/range.h>
#include <tilegrad/core/compile/compile.h>
#include <tilegrad/nn/layers/params.h>
#include <tilegrad/nn/optimizers/shards.h>

namespace tg::optim {

// A factor on the loss that keeps gradients in the range of f16, found during training as in
// torch.amp.GradScaler: a step whose gradient overflows is skipped and lowers the factor, and a run of steps
// without one raises it. All of it is part of the step's program.
struct LossScale {
  double initial = 65536;            // 1 to 2^60
  double growth = 2, backoff = 0.5;  // factors: at least 1; above 0 and at most 1
  std::int64_t interval = 2000;      // consecutive good steps before it grows, 1 to 2^24

  void check() const;  // throws Error that names the option out of its range
};

// The learning rates that schedules and programs accept: 0 or more, finite in f32.
inline constexpr Range learning_rates = Range::at_least(0);

class Optimizer {
 public:
  // The weight decay of each parameter. A number applies to parameters with two dimensions or more, so that
  // gains and biases never decay.
  using Decay = std::function<double(const Parameter&)>;
  static Decay decay_of_matrices(double decay);

  struct Update {
    Tensor loss;           // as given; of an optimizer with ranks the sum over them, f32 for half types
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
  // Optimizers of the same loss, each with its own parameters, either all step or all skip the step. If one
  // gradient is not finite, none changes anything. Their loss scales grow and shrink together. A program with
  // one of the updates also computes the gradient norms of the others. Each optimizer clips by the norm of
  // its own gradients, as clip_grad_norm_ does for the parameters that are passed to it.
  //
  // `copies`, of parameters() in their order and empty where there is none, get the new weights in their own
  // dtype (nn::LowPrecisionCopies).
  Update minimize(const Tensor& loss, const std::vector<Parameter>& copies = {}) const {
    return update(loss, differentiate(loss), {.reading = {.copies = copies}});
  }

  // Its two halves, which may be in different graphs: gradients of the loss (with loss scaling, of the scaled
  // one) for parameters(), and the update by such gradients, or a mean of them. With ranks, gradients and
  // loss are those of each rank, whose sums over the ranks are meant.
  struct UpdateOptions {
    WeightReading reading = {};  // copies as for minimize(), and with ranks which weights nothing else reads
    // With ranks: gradients are added few at a time, when they are there, and freed.
    bool hoist_collectives = false;
    bool norm_of_blocks = false;  // the norm has the same bits for any number of ranks that divides 16
  };
  std::vector<Tensor> differentiate(const Tensor& loss) const;
  Update update(const Tensor& loss, const std::vector<Tensor>& gradients, const UpdateOptions& options) const;

  const std::vector<Parameter>& parameters() const { return shards_.parameters(); }  // that it trains
  const detail::Shards& shards() const { return shards_; }
  // What a resumed run needs: the optimizer's own ("optimizer.m.<path>", …), "optimizer.step",
  // "optimizer.skipped"; with loss scaling also "optimizer.loss_scale", "optimizer.good_steps",
  // "optimizer.overflowed". With ranks, of this rank's shards.
  std::vector<Parameter> state() const;
  // The same of all ranks: what they divide is on the CPU. Its values are undefined until gather_state(),
  // which all ranks must call, has filled it; `to` is empty on ranks that do not need them.
  std::vector<Parameter> whole_state() const;
  void gather_state(const std::vector<Parameter>& to) const;
  // Sets the state, of all ranks, from values of whole_state() in its order. Throws ShapeError or DTypeError
  // for one that does not fit, Error for another number of them and for a counter or a loss scale that no
  // optimizer could have reached. Then nothing has changed.
  void set_state(std::span<const Array> values) const;

  // A step, as a derived class appends it: by shard.
  struct Step {
    std::vector<Tensor> weights, gradients;
    std::vector<std::optional<DType>> copies;  // of the new weight, in another dtype
    Tensor learning_rate;                      // []
    Tensor number;                             // [] f32, from 1; skipped steps do not count
    Tensor scale;  // [] to multiply gradients by; 0: the step is skipped and nothing changes
  };
  // One of the numbers that an optimizer keeps of each element: by shard, empty where it keeps none.
  using Moment = std::vector<Parameter>;
  // "optimizer.<what>.<path>": zeros, of the shard's shape and dtype.
  Parameter zero_beside(std::size_t shard, const std::string& what) const;

 protected:
  // Trains those of the parameters that are not frozen; throws Error if there are none.
  // `clip`: largest norm of all gradients together; 0 for none. Throws Error for a clip or a loss scale out
  // of range. `ranks`: divide the update, but not that of a parameter whose elements need each other
  // (`is_divisible`, default: none does).
  Optimizer(const std::vector<Parameter>& parameters, double clip, const std::optional<LossScale>& loss_scale,
            std::shared_ptr<Communicator> ranks = {},
            const std::function<bool(const Parameter&)>& is_divisible = {});

  const Parameter& parameter_of(std::size_t shard) const { return shards_.parameter_of(shard); }
  // The weight decay of each shard's parameter: `each`, or `weight_decay` of matrices. Throws Error for one
  // that is negative or not finite.
  std::vector<double> decays(double weight_decay, const Decay& each) const;
  // A shard's new weight, with its copy computed beside it, in the same pass over memory.
  static NewWeight with_copy(const Step& step, std::size_t shard, const Tensor& weight);
  // zero_beside(), which is then a part of the state. Those of a shard are in the order of `what`.
  Parameter add_moment(std::size_t shard, const std::string& what);
  // The new weight of each shard; adds the assignments of moments.
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
  Parameter scale_, good_steps_, overflowed_;  // with loss scaling
  double clip_;
  std::optional<LossScale> loss_scale_;
};

}  // namespace tg::optim
