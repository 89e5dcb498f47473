// Mixed precision: layers compute in bf16 or f16 with weights that are stored in f32 (docs/training.md).
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <tilegrad/core/graph/graph.h>

namespace tg::nn {

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"  // GCC warns that the enumerators bf16 and f16 shadow the dtypes
// The precision in which layers compute.
enum class Precision {
  full,  // the weights' dtype, which is f32 unless Params specifies another
  tf32,  // as full, but on CUDA, f32 matmuls round operands to TF32 (10 fraction bits)
  bf16,  // matmuls and activations in bf16
  f16,   // matmuls and activations in f16; needs AdamW::Options::loss_scale
};
#pragma GCC diagnostic pop
// Returns the precision with the name "f32" (full), "tf32", "bf16" or "f16". Throws Error for other names.
Precision precision_named(std::string_view name);
// Returns bf16 or f16 for the precision of this name, otherwise nothing.
std::optional<DType> low_precision_dtype(Precision precision);

// Low-precision copies of weights that persist between steps. An optimizer writes them together with the
// weights (Optimizer::update), so that a step casts no weights (docs/training.md).
class LowPrecisionCopies {
 public:
  // Copies will have the given dtype. Throws DTypeError unless it is bf16 or f16.
  explicit LowPrecisionCopies(DType dtype);

  // Returns cast(p, dtype), including its gradient, but reads the value from a copy. The first call for p
  // allocates the copy. An update writes the weight and the copy together. If the weight was changed in any
  // other way, the copy is refreshed before the next run of the graph's programs. Throws DTypeError unless p
  // is f32 or f64.
  Tensor tensor(const Parameter& p, Graph& graph, std::source_location where);

  // Returns the copy of each parameter, for Optimizer::update, or an empty Parameter if there is none.
  std::vector<Parameter> of(const std::vector<Parameter>& parameters) const;
  // The memory of all copies in bytes.
  std::size_t bytes() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// While it exists, layers that this thread calls for this graph compute in bf16 or f16, if that is the
// precision. Each weight is cast only once. Inputs are cast if they are wider. Gains of norms are not cast,
// because the kernels accept any dtype. Similar to torch.autocast.
class Autocast {
 public:
  // A head with a 16-bit weight returns f32 logits. With low_precision_logits, it returns logits in the
  // 16-bit type, as a head with an f32 weight does. Use this in training, because logits and their gradients
  // are the largest tensors there. If there are `copies`, wider weights are not cast but read from the
  // copies.
  Autocast(Graph& graph, Precision precision, bool low_precision_logits = false,
           LowPrecisionCopies* copies = nullptr);
  // Restores the previous Autocast of this thread.
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  // For layers: converts x, before it is multiplied by a weight (Weight::tensor), to the dtype of the
  // multiplication. Without an Autocast, returns x.
  static Tensor input(TensorArg x);
  // For heads: whether logits are always in the 16-bit type (low_precision_logits).
  static bool has_low_precision_logits(TensorArg x);

 private:
  friend class Weight;
  static Tensor weight(const Parameter& p, Graph& graph, std::source_location where);
  static Autocast* of(const Graph& graph);

  Graph& graph_;
  std::optional<DType> dtype_;
  bool low_precision_logits_;
  LowPrecisionCopies* copies_;
  std::unordered_map<const void*, Tensor> weights_;  // cast, by the key of their parameter
  Autocast* outer_;
};

}  // namespace tg::nn
