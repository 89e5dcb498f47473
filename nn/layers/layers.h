// Layers: each creates its parameters on a Path and, when called, appends graph nodes under its name. Sizes
// that do not fit throw ShapeError with the line of the user's call. Initial values are GPT-2's unless given:
// N(0, 0.02²) for weights, 0 for biases, 1 for gains.
#pragma once

#include <string_view>

#include <tilegrad/nn/layers/module.h>

namespace tg::nn {

Tensor dropped(TensorArg x, double p, Mode mode);  // dropout in training, else x

namespace detail {
// a·b, of the sizes of a layer; throws ShapeError for one that is negative and for a product of 2^31 or more.
std::int64_t product(std::int64_t a, std::int64_t b);
}  // namespace detail

// y = x·Wᵀ + b: x [..., in], W [out, in] ("weight"), b [out] ("bias"); plus what its adapter adds, if it
// has one.
class Linear : public Module {
 public:
  struct Options {
    bool bias = true;
    Init init = Init::gpt2();
    bool wide = false;  // for a head: f32 from a weight that is held in bf16 or f16
  };
  Linear(const Path& at, std::int64_t in, std::int64_t out, Options options);
  Linear(const Path& at, std::int64_t in, std::int64_t out) : Linear(at, in, out, Options{}) {}

  const Weight& weight() const { return weight_; }
  const LowRank* adapter() const { return *adapter_ ? &**adapter_ : nullptr; }  // null: none

 private:
  Tensor record(TensorArg x, const CallArgs& call) const override;
  bool adds_residual() const override { return true; }  // in the matmul's pass
  std::optional<Product> operands(TensorArg x) const override;
  Tensor product(TensorArg x, const CallArgs& call) const;  // without the adapter
  Weight weight_, bias_;
  bool wide_;
  std::shared_ptr<const std::optional<LowRank>> adapter_;
};

// Rows of a table [count, width] ("weight") by number: ids i32 or i64 [...] → [..., width].
class Embedding : public Module {
 public:
  Embedding(const Path& at, std::int64_t count, std::int64_t width, Init init = Init::gpt2());

  // x·Eᵀ: [..., width] → [..., count], the head of a model that ties it to the table; in f32 if the table is
  // held in bf16 or f16.
  Layer head() const;
  const Weight& weight() const { return weight_; }

 private:
  Tensor record(TensorArg ids, const CallArgs& call) const override;
  Weight weight_;
};

// Learned positions, a table [context, width] ("weight"): tokens [B, L] → the rows of their positions, [L,
// width]. Positions are 0 to L - 1, or those of the rank's tokens (ContextParallel); after the tokens in a
// call's cache, [B, L, width].
class PositionEmbedding : public Module {
 public:
  PositionEmbedding(const Path& at, std::int64_t context, std::int64_t width, Init init = Init::gpt2());

 private:
  Tensor record(TensorArg tokens, const CallArgs& call) const override;
  Weight weight_;
};

// Over the last axis: (x − mean)/√(var + eps) · gain + bias, "weight" and "bias" [width].
class LayerNorm : public Module {
 public:
  LayerNorm(const Path& at, std::int64_t width, bool bias = true, double eps = 1e-5);

 private:
  Tensor record(TensorArg x, const CallArgs& call) const override;
  Weight weight_, bias_;
  double eps_;
};

// Over the last axis: x/√(mean(x²) + eps) · gain, "weight" [width]. With plus_one the gain is 1 + weight, and
// the weight is 0 at first (Gemma).
class RmsNorm : public Module {
 public:
  RmsNorm(const Path& at, std::int64_t width, double eps = 1e-6, bool plus_one = false);

 private:
  Tensor record(TensorArg x, const CallArgs& call) const override;
  Weight weight_;
  double eps_;
  bool plus_one_;
};

enum class Activation {
  gelu,       // x·Φ(x), by erf
  gelu_tanh,  // its approximation by tanh
  silu,       // x·σ(x)
};
// By the names above. Throws Error for other names.
Activation activation_named(std::string_view name);

// x [..., width] → c_proj(activation(c_fc(x))) [..., width], `inner` wide inside.
class Mlp : public Module {
 public:
  struct Options {
    std::int64_t inner = 0;  // 0: four times the width
    Activation activation = Activation::gelu;
    bool bias = true;
    Init init = Init::gpt2(), output_init = Init::gpt2();  // of c_fc and c_proj
  };
  Mlp(const Path& at, std::int64_t width, Options options);
  Mlp(const Path& at, std::int64_t width) : Mlp(at, width, Options{}) {}

 private:
  Tensor record(TensorArg x, const CallArgs& call) const override;
  bool adds_residual() const override { return true; }
  Mlp(const Path& at, std::int64_t width, const Options& options, std::int64_t inner);
  Linear c_fc_, c_proj_;
  Activation activation_;
};

// down_proj(activation(gate_proj(x)) ⊛ up_proj(x)), `inner` wide inside (Shazeer, 2020).
class GatedMlp : public Module {
 public:
  struct Options {
    Activation activation = Activation::silu;
    bool bias = false;
    Init init = Init::gpt2(), output_init = Init::gpt2();  // of gate_proj and up_proj, and of down_proj
  };
  GatedMlp(const Path& at, std::int64_t width, std::int64_t inner, Options options);
  GatedMlp(const Path& at, std::int64_t width, std::int64_t inner) : GatedMlp(at, width, inner, Options{}) {}

 private:
  Tensor record(TensorArg x, const CallArgs& call) const override;
  bool adds_residual() const override { return true; }
  Linear gate_proj_, up_proj_, down_proj_;
  Activation activation_;
};

}  // namespace tg::nn
