// The optimizers and the learning-rate schedules.
#pragma once

#include <string_view>

#include <tilegrad/nn/optimizers/optimizer.h>
#include <tilegrad/ops/ops.h>

namespace tg::optim {

// Learning-rate schedules: the rate of step t = 0, 1, …, computed on the host and fed to the program.
struct Schedule {
  enum class Kind {
    cosine,               // half a cosine from peak to floor
    linear,               // a straight line from peak to floor
    constant,             // peak
    warmup_stable_decay,  // peak, and at the end a straight line to floor
  };
  // "cosine", "linear", "constant", "wsd". Throws Error for other names.
  static Kind named(std::string_view name);

  double peak = 1e-3, floor = 1e-4;
  std::int64_t warmup = 100, steps = 2000;  // a falling rate reaches floor at step `steps`
  Kind kind = Kind::cosine;
  double decay = 0.2;  // the share of all steps in which warmup_stable_decay falls

  // Throws Error that names the option out of its range. Rates are at least 0 and finite in f32, numbers of
  // steps at least 0, and decay is from 0 to 1.
  void check() const;
  // Before step `warmup`, a straight line up to peak. Throws as check() does, and for a negative step.
  double operator()(std::int64_t t) const;
};

// Stochastic gradient descent with momentum, as PyTorch's SGD does it: with gradient g and decay λ
//   g' = g + λ·p,  b' = μ·b + g',  p' = p − η·b', or with Nesterov's momentum p − η·(g' + μ·b').
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

  Moment momenta_;              // "optimizer.momentum.<path>" of each; none without momentum
  std::vector<double> decays_;  // by shard
  double momentum_;
  bool nesterov_;
};

// AdamW's moments of a shard.
struct AdamWState {
  std::size_t shard;
  Parameter m, v;
  double decay;
};
// AdamW (Loshchilov and Hutter, 2019); with a weight decay of 0 it is Adam.
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

  std::vector<AdamWState> states_;  // "optimizer.m.<path>" and "optimizer.v.<path>" of each
  AdamWOptions options_;
};

// Muon (Jordan et al., 2024): matrices are updated by their orthogonalised momentum. With gradient g of a
// matrix p [r, c],
//   b' = μ·b + g,  o = orthogonalized(g + μ·b'),  p' = (1 − η·λ)·p − η·0.2·√max(r, c)·o,
// where the last factor gives updates the size of AdamW's (Liu et al., 2025), so that one learning rate
// serves both. Matrices of one shape, transposed ones too, are a batch of products. Everything else
// (embeddings, head, gains, biases) is AdamW's.
class Muon final : public Optimizer {
 public:
  struct Options {
    double momentum = 0.95;
    double weight_decay = 0.1;                     // of parameters with two dimensions or more
    double clip = 1.0;                             // largest norm of all gradients together; 0 for none
    double beta1 = 0.9, beta2 = 0.99, eps = 1e-8;  // of AdamW
    int iterations = 5;
    // dtype of the products of orthogonalized(): f64, f32, bf16 or f16. The weights' own, at least f32,
    // unless given; in Jordan's code it is bf16.
    std::optional<DType> products = {};
    std::optional<LossScale> loss_scale = {};
    std::function<bool(const Parameter&)> takes = {};  // Muon's parameters, instead of hidden_matrix
    Decay decay = {};                                  // of each parameter, instead of weight_decay
    // Which divide the update among them, but for Muon's matrices, whose products need all of a matrix.
    std::shared_ptr<Communicator> ranks = {};
  };
  Muon(const std::vector<Parameter>& params, Options options);
  explicit Muon(const std::vector<Parameter>& params) : Muon(params, Options{}) {}

  // Has two dimensions and is, by its name ("wte", "wpe", "embed_tokens", "lm_head"), neither embedding nor
  // head.
  static bool hidden_matrix(const Parameter& p);

 private:
  std::vector<NewWeight> append(const Step& step, std::vector<Assign>& assign) const override;
  struct Matrix {
    std::size_t shard;
    Parameter momentum;
    double decay;
  };
  // "optimizer.momentum.<path>" of each matrix, "optimizer.m.<path>" and "optimizer.v.<path>" of the rest.
  std::vector<Matrix> matrices_;
  std::vector<AdamWState> rest_;
  AdamWOptions adamw_;
  double momentum_;
  int iterations_;
  std::optional<DType> products_;
};

// Matrices x [..., r, c] with their singular values moved near 1 (0.7 to 1.2): x/‖x‖ through iterations of
// a·x + (b·A + c·A²)·x, A = x·xᵀ, with Jordan's coefficients. Zeros stay zeros.
Tensor orthogonalized(const Tensor& x, int iterations = 5);

}  // namespace tg::optim
