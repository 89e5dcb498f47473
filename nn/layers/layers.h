// Layers: parameters made on a Path, and a call that appends graph nodes under the layer's name. Sizes that
// do not fit are ShapeErrors at the line of the user's call. Initial values are GPT-2's unless given: N(0,
// 0.02²) for weights, 0 for biases, 1 for gains.
#pragma once

#include <tilegrad/core/graph/graph.h>
#include <tilegrad/nn/layers/params.h>

namespace tg::nn {

// Dropout and whatever else differs between the two is on only in training.
enum class Mode { evaluate, train };
Tensor dropped(TensorArg x, double p, Mode mode);  // dropout in training, else x

// y = x·Wᵀ + b: x [..., in], W [out, in] ("weight"), b [out] ("bias").
class Linear {
 public:
  struct Options {
    bool bias = true;
    Init init = Init::gpt2();
  };
  Linear(const Path& at, std::int64_t in, std::int64_t out, Options options);
  Linear(const Path& at, std::int64_t in, std::int64_t out) : Linear(at, in, out, Options{}) {}

  // [..., out]; added to a residual [..., out] in the same pass when one is given.
  Tensor operator()(TensorArg x, TensorArg residual = {}) const;
  const Parameter& weight() const { return weight_; }

 private:
  std::string name_;
  Parameter weight_, bias_;
  bool has_bias_;
};

// Rows of a table [count, width] ("weight") by number.
class Embedding {
 public:
  Embedding(const Path& at, std::int64_t count, std::int64_t width, Init init = Init::gpt2());

  Tensor operator()(TensorArg ids) const;  // ids i32 or i64 [...] → [..., width]
  Tensor attend(TensorArg x) const;        // x·Eᵀ: [..., width] → [..., count], the head of a tied model
  Tensor first(Graph& graph, std::int64_t rows) const;  // [rows, width]: positions 0, 1, …
  const Parameter& weight() const { return weight_; }

 private:
  std::string name_;
  Parameter weight_;
};

// Over the last axis: (x − mean)/√(var + eps) · gain + bias, "weight" and "bias" [width].
class LayerNorm {
 public:
  LayerNorm(const Path& at, std::int64_t width, bool bias = true, double eps = 1e-5);
  Tensor operator()(TensorArg x) const;

 private:
  std::string name_;
  Parameter weight_, bias_;
  bool has_bias_;
  double eps_;
};

// Over the last axis: x/√(mean(x²) + eps) · gain, "weight" [width].
class RmsNorm {
 public:
  RmsNorm(const Path& at, std::int64_t width, double eps = 1e-6);
  Tensor operator()(TensorArg x) const;

 private:
  std::string name_;
  Parameter weight_;
  double eps_;
};

}  // namespace tg::nn
