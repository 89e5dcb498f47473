// A layer creates its parameters on a Path. A call appends graph nodes under the layer's name. If sizes do
// not fit, it throws ShapeError with the source line of the user's call. Default initial values are GPT-2's:
// N(0, 0.02²) for weights, 0 for biases, 1 for gains.
#pragma once

#include <string_view>

#include <tilegrad/nn/layers/module.h>

namespace tg::nn {

// Returns dropout(x) with probability p in training, otherwise x.
Tensor dropped(TensorArg x, double p, Mode mode);

namespace detail {
// Returns a·b for sizes of a layer. Throws ShapeError if one is negative or the product is 2^31 or more.
std::int64_t product(std::int64_t a, std::int64_t b);
}  // namespace detail

// y = x·Wᵀ + b, as torch.nn.Linear: x [..., in], W [out, in] ("weight"), b [out] ("bias"). A LoRA adapter, if
// there is one, adds to y.
class Linear : public Module {
 public:
  // Options of the layer.
  struct Options {
    bool bias = true;          // add b
    Init init = Init::gpt2();  // of the weight and, if by_fan_in, the bias
    bool wide = false;         // for a head: compute in f32 with a bf16 or f16 weight
  };
  // Creates the parameters below `at`. Throws ShapeError unless the sizes are positive.
  Linear(const Path& at, std::int64_t in, std::int64_t out, Options options);
  // As above, with default options.
  Linear(const Path& at, std::int64_t in, std::int64_t out) : Linear(at, in, out, Options{}) {}

  // The weight [out, in].
  const Weight& weight() const { return weight_; }
  // The adapter; null if there is none.
  const LowRank* adapter() const { return *adapter_ ? &**adapter_ : nullptr; }

 private:
  Tensor record(TensorArg x, const CallArgs& call) const override;
  bool adds_residual() const override { return true; }  // in the matmul's epilogue
  std::optional<Product> operands(TensorArg x) const override;
  Tensor product(TensorArg x, const CallArgs& call) const;  // without the adapter
  Weight weight_, bias_;
  bool wide_;
  std::shared_ptr<const std::optional<LowRank>> adapter_;
};

// A table [count, width] ("weight") that is indexed by ids, as torch.nn.Embedding: i32 or i64 [...] → [...,
// width].
class Embedding : public Module {
 public:
  // Creates the table below `at`. Throws ShapeError unless the sizes are positive.
  Embedding(const Path& at, std::int64_t count, std::int64_t width, Init init = Init::gpt2());

  // Returns the head of a model with tied embeddings, x·Eᵀ: [..., width] → [..., count]. It computes in f32
  // if the table is in bf16 or f16.
  Layer head() const;
  // The table [count, width].
  const Weight& weight() const { return weight_; }

 private:
  Tensor record(TensorArg ids, const CallArgs& call) const override;
  Weight weight_;
};

// Learned positions: a table [context, width] ("weight"). tokens [B, L] → the table rows of their positions,
// [L, width]. Positions are 0 to L − 1 or, with ContextParallel, the positions of the rank's tokens. With a
// cache, they follow the cached tokens, and the result is [B, L, width].
class PositionEmbedding : public Module {
 public:
  // Creates the table below `at`. Throws ShapeError unless the sizes are positive.
  PositionEmbedding(const Path& at, std::int64_t context, std::int64_t width, Init init = Init::gpt2());

 private:
  Tensor record(TensorArg tokens, const CallArgs& call) const override;
  Weight weight_;
};

// Layer normalization over the last axis, as torch.nn.LayerNorm: (x − mean)/√(var + eps) · gain + bias, with
// gain "weight" [width] and "bias" [width].
class LayerNorm : public Module {
 public:
  // Creates the parameters below `at`. Throws ShapeError unless width is positive.
  LayerNorm(const Path& at, std::int64_t width, bool bias = true, double eps = 1e-5);

 private:
  Tensor record(TensorArg x, const CallArgs& call) const override;
  Weight weight_, bias_;
  double eps_;
};

// RMS normalization over the last axis, as torch.nn.RMSNorm: x/√(mean(x²) + eps) · gain, with gain "weight"
// [width]. With plus_one, the gain is 1 + weight, and weight is initially 0 (Gemma).
class RmsNorm : public Module {
 public:
  // Creates the parameter below `at`. Throws ShapeError unless width is positive.
  RmsNorm(const Path& at, std::int64_t width, double eps = 1e-6, bool plus_one = false);

 private:
  Tensor record(TensorArg x, const CallArgs& call) const override;
  Weight weight_;
  double eps_;
  bool plus_one_;
};

// The activation function of an MLP, as in torch.nn.functional.
enum class Activation {
  gelu,       // x·Φ(x), computed with erf
  gelu_tanh,  // the tanh approximation of gelu
  silu,       // x·σ(x)
};
// Returns the activation with one of the names above. Throws Error for other names.
Activation activation_named(std::string_view name);

// The MLP of GPT-2: x [..., width] → c_proj(activation(c_fc(x))) [..., width]. Weights: "c_fc" [inner,
// width], "c_proj" [width, inner].
class Mlp : public Module {
 public:
  // Options of the layer.
  struct Options {
    std::int64_t inner = 0;                    // hidden size; 0: 4·width
    Activation activation = Activation::gelu;  // between the two projections
    bool bias = true;                          // of both projections
    Init init = Init::gpt2();                  // initial values of c_fc
    Init output_init = Init::gpt2();           // initial values of c_proj
  };
  // Creates the parameters below `at`. Throws ShapeError for sizes that do not fit.
  Mlp(const Path& at, std::int64_t width, Options options);
  // As above, with default options.
  Mlp(const Path& at, std::int64_t width) : Mlp(at, width, Options{}) {}

 private:
  Tensor record(TensorArg x, const CallArgs& call) const override;
  bool adds_residual() const override { return true; }
  Mlp(const Path& at, std::int64_t width, const Options& options, std::int64_t inner);
  Linear c_fc_, c_proj_;
  Activation activation_;
};

// The gated MLP of Llama (Shazeer, 2020): x [..., width] → down_proj(activation(gate_proj(x)) ⊛ up_proj(x))
// [..., width]. Weights: "gate_proj" and "up_proj" [inner, width], "down_proj" [width, inner].
class GatedMlp : public Module {
 public:
  // Options of the layer.
  struct Options {
    Activation activation = Activation::silu;  // of gate_proj's result
    bool bias = false;                         // of all projections
    Init init = Init::gpt2();                  // initial values of gate_proj and up_proj
    Init output_init = Init::gpt2();           // initial values of down_proj
  };
  // Creates the parameters below `at`. Throws ShapeError for sizes that do not fit.
  GatedMlp(const Path& at, std::int64_t width, std::int64_t inner, Options options);
  // As above, with default options.
  GatedMlp(const Path& at, std::int64_t width, std::int64_t inner) : GatedMlp(at, width, inner, Options{}) {}

 private:
  Tensor record(TensorArg x, const CallArgs& call) const override;
  bool adds_residual() const override { return true; }
  Linear gate_proj_, up_proj_, down_proj_;
  Activation activation_;
};

}  // namespace tg::nn
