// The optimizers SGD, AdamW and Muon, and the learning-rate schedules.
#pragma once

#include <string_view>

#include <tilegrad/nn/optimizers/optimizer.h>
#include <tilegrad/ops/ops.h>

namespace tg::optim {

// A learning-rate schedule: the rate of step t = 0, 1, …, computed on the host and fed to the program.
struct Schedule {
  // The shape of the schedule after the warmup.
  enum class Kind {
    cosine,               // half a cosine from peak to floor
    linear,               // a straight line from peak to floor
    constant,             // peak
    warmup_stable_decay,  // peak, then a straight line to floor
  };
  // Returns the kind with the name "cosine", "linear", "constant" or "wsd". Throws Error for other names.
  static Kind named(std::string_view name);

  double peak = 1e-3, floor = 1e-4;  // highest rate; last rate
  // Warmup steps; total steps, after which a falling rate has reached floor.
  std::int64_t warmup = 100, steps = 2000;
  Kind kind = Kind::cosine;  // shape after the warmup
  double decay = 0.2;        // fraction of the steps in which warmup_stable_decay falls

  // Throws Error that names an option out of range. Rates must be at least 0 and finite in f32, numbers of
  // steps at least 0, and decay 0 to 1.
  void check() const;
  // Returns the rate of step t. Before step `warmup`, it rises linearly to peak. Throws as check() does, and
  // for a negative step.
  double operator()(std::int64_t t) const;
};

// Stochastic gradient descent with momentum, as torch.optim.SGD. With gradient g and weight decay λ:
//  g' = g + λ·p,  b' = μ·b + g',  p' = p − η·b', or with Nesterov momentum p − η·(g' + μ·b').
class Sgd final : public Optimizer {
 public:
  // Options of the optimizer.
  struct Options {
    double momentum = 0.9;                     // μ
    bool nesterov = false;                     // use Nesterov momentum
    double weight_decay = 0;                   // λ, for parameters with two or more dimensions
    double clip = 1.0;                         // maximum norm of all gradients together; 0: no clipping
    std::optional<LossScale> loss_scale = {};  // dynamic loss scaling; none: no scaling
    Decay decay = {};                          // weight decay by parameter, instead of weight_decay
    std::shared_ptr<Communicator> ranks = {};  // these divide the update
  };
  // With momentum, allocates a zero buffer for each parameter on its device. Throws Error for options out of
  // range, and for nesterov without momentum.
  Sgd(const std::vector<Parameter>& params, Options options);

 private:
  std::vector<NewWeight> append(const Step& step, std::vector<Assign>& assign) const override;

  Moment momenta_;              // "optimizer.momentum.<path>" of each; empty without momentum
  std::vector<double> decays_;  // by shard
  double momentum_;
  bool nesterov_;
};

// Moments of a shard, as AdamW uses them.
struct AdamWState {
  std::size_t shard;  // index of the shard
  Parameter m, v;     // first and second moment
  double decay;       // weight decay
};
// AdamW (Loshchilov and Hutter, 2019), as torch.optim.AdamW. With a weight decay of 0, it is Adam.
class AdamW final : public Optimizer {
 public:
  // Options of the optimizer.
  struct Options {
    double beta1 = 0.9, beta2 = 0.99, eps = 1e-8;  // decay rates of the moments; added to √v
    // For parameters with two or more dimensions; gains and biases never decay.
    double weight_decay = 0.1;
    double clip = 1.0;  // maximum norm of all gradients together; 0: no clipping
    // Dynamic loss scaling, for Precision::f16; none: no scaling.
    std::optional<LossScale> loss_scale = {};
    Decay decay = {};                          // weight decay by parameter, instead of weight_decay
    std::shared_ptr<Communicator> ranks = {};  // these divide the update
  };
  // Allocates zero moments for each parameter that is not frozen, on its device. Throws Error for options out
  // of range.
  AdamW(const std::vector<Parameter>& params, Options options);
  // As above, with default options.
  explicit AdamW(const std::vector<Parameter>& params) : AdamW(params, Options{}) {}

 private:
  std::vector<NewWeight> append(const Step& step, std::vector<Assign>& assign) const override;

  std::vector<AdamWState> states_;  // "optimizer.m.<path>" and "optimizer.v.<path>" of each
  AdamWOptions options_;
};

// Muon (Jordan et al., 2024): updates matrices by their orthogonalized momentum. With gradient g of a matrix
// p [r, c]: b' = μ·b + g, o = orthogonalized(g + μ·b'), p' = (1 − η·λ)·p − η·0.2·√max(r, c)·o The last factor
// makes updates as large as AdamW's updates (Liu et al., 2025). One learning rate is therefore suitable for
// both. Matrices of equal shape, up to transposition, are orthogonalized in one batch. AdamW updates all
// other parameters (embeddings, head, gains, biases).
class Muon final : public Optimizer {
 public:
  // Options of the optimizer.
  struct Options {
    double momentum = 0.95;                        // μ
    double weight_decay = 0.1;                     // λ, for parameters with two or more dimensions
    double clip = 1.0;                             // maximum norm of all gradients together; 0: no clipping
    double beta1 = 0.9, beta2 = 0.99, eps = 1e-8;  // of AdamW
    int iterations = 5;                            // of orthogonalized()
    // dtype of the matmuls in orthogonalized(): f64, f32, bf16 or f16. Default: the weights' dtype, but at
    // least f32. Jordan's code uses bf16.
    std::optional<DType> products = {};
    std::optional<LossScale> loss_scale = {};  // dynamic loss scaling; none: no scaling
    // Selects Muon's parameters; default: hidden_matrix.
    std::function<bool(const Parameter&)> takes = {};
    Decay decay = {};  // weight decay by parameter, instead of weight_decay
    // These ranks divide the update. Muon's matrices are not divided, because orthogonalization needs the
    // whole matrix.
    std::shared_ptr<Communicator> ranks = {};
  };
  // Allocates zero momenta and moments on the parameters' devices. Throws Error for options out of range, and
  // ShapeError if `takes` selects a parameter that does not have two dimensions.
  Muon(const std::vector<Parameter>& params, Options options);
  // As above, with default options.
  explicit Muon(const std::vector<Parameter>& params) : Muon(params, Options{}) {}

  // Whether a parameter has two dimensions and is not an embedding or a head. These are recognized by their
  // names ("wte", "wpe", "embed_tokens", "lm_head").
  static bool hidden_matrix(const Parameter& p);

 private:
  std::vector<NewWeight> append(const Step& step, std::vector<Assign>& assign) const override;
  struct Matrix {
    std::size_t shard;
    Parameter momentum;
    double decay;
  };
  // "optimizer.momentum.<path>" of each matrix; "optimizer.m.<path>" and "optimizer.v.<path>" of the other
  // parameters.
  std::vector<Matrix> matrices_;
  std::vector<AdamWState> rest_;
  AdamWOptions adamw_;
  double momentum_;
  int iterations_;
  std::optional<DType> products_;
};

// Returns matrices x [..., r, c] with their singular values moved near 1 (0.7 to 1.2). Starts with x/‖x‖ and
// repeats x ← a·x + (b·A + c·A²)·x with A = x·xᵀ and Jordan's coefficients. A matrix of zeros does not
// change.
Tensor orthogonalized(const Tensor& x, int iterations = 5);

}  // namespace tg::optim
