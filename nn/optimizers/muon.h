// Muon (Jordan et al., 2024): matrices are updated by their orthogonalised momentum. With gradient g of a
// matrix p [r, c],
//   b' = μ·b + g,  o = orthogonalized(g + μ·b'),  p' = (1 − η·λ)·p − η·0.2·√max(r, c)·o,
// where the last factor gives updates the size of AdamW's (Liu et al., 2025), so that one learning rate
// serves both. Matrices of one shape, transposed ones too, are a batch of products. Everything else
// (embeddings, head, gains, biases) is AdamW's.
#pragma once

#include <tilegrad/nn/optimizers/adamw.h>

namespace tg::optim {

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
  // "optimizer.momentum.<path>" of each matrix, "optimizer.m.<path>" and "optimizer.v.<path>" of the rest.
  std::vector<Moment> moments() const override;

  struct Matrix {
    std::size_t shard;
    Parameter momentum;
    double decay;
  };
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
